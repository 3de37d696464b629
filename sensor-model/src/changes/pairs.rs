//! Two maps side by side.
//!
//! In: two sorted maps. Out: every key once, with the value of each map.

use std::collections::BTreeMap;

/// Every key of either map with the values of both maps, in the order of the keys.
pub(super) fn pairs<'a, T>(
    old: &'a BTreeMap<String, T>,
    new: &'a BTreeMap<String, T>,
) -> impl Iterator<Item = (&'a str, Option<&'a T>, Option<&'a T>)> {
    let (mut old, mut new) = (old.iter().peekable(), new.iter().peekable());
    std::iter::from_fn(move || {
        use std::cmp::Ordering::{Equal, Greater, Less};
        let order = match (old.peek(), new.peek()) {
            (Some((a, _)), Some((b, _))) => a.cmp(b),
            (Some(_), None) => Less,
            (None, _) => Greater,
        };
        let left = if order == Greater { None } else { old.next() };
        let right = if order == Less { None } else { new.next() };
        let key = left.or(right)?.0;
        debug_assert!(order != Equal || left.is_some() && right.is_some(), "equal keys go together");
        Some((key.as_str(), left.map(|(_, value)| value), right.map(|(_, value)| value)))
    })
}
