//! The digests of what a run expects, by which a writer's announcement is checked.
//!
//! In: the expectations of a run, and the digests of an announcement. Out: whether the daemon expects all of them. It owns the digests. A
//! run only adds expectations, so each of them is hashed once and not for each announcement.

use super::writer_protocol;
use sensor_model::expectation::Expectation;

/// A digest of [`writer_protocol::digest`].
type Digest = [u8; 32];

/// The digests of a run's expectations. They are made at the first announcement that needs them.
#[derive(Debug, Default)]
pub(super) struct ExpectedDigests {
    sorted: Vec<Digest>,
}

impl ExpectedDigests {
    /// Whether each of the digests is that of an expectation of this run.
    pub(super) fn have_all(&mut self, expectations: &[Expectation], digests: &[String]) -> bool {
        self.have_all_by(expectations, digests, writer_protocol::digest)
    }

    fn have_all_by(
        &mut self,
        expectations: &[Expectation],
        digests: &[String],
        digest: impl FnMut(&Expectation) -> String,
    ) -> bool {
        let new = expectations.get(self.sorted.len()..).unwrap_or_default();
        if !new.is_empty() {
            // A text that is no digest would be none of an announcement either.
            self.sorted.extend(new.iter().map(digest).map(|text| bytes(&text).unwrap_or_default()));
            self.sorted.sort_unstable();
        }
        digests
            .iter()
            .all(|text| bytes(text).is_some_and(|digest| self.sorted.binary_search(&digest).is_ok()))
    }
}

fn bytes(text: &str) -> Option<Digest> {
    let mut digest = Digest::default();
    hex::decode_to_slice(text, &mut digest).is_ok().then_some(digest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sensor_model::expectation::{DirectoryExpectation, Expected, Owner, Source, Thing};

    fn directory(path: &str, mode: u32) -> Expectation {
        let expected = DirectoryExpectation { mode, user: Owner::Id(0), group: Owner::Id(0) };
        Expectation {
            thing: Thing::directory(path),
            expected: Expected::Directory(expected),
            ssh_keys: false,
            label: None,
            source: Source::new("one".to_owned(), "one.yaml".to_owned()).into(),
        }
    }

    #[test]
    fn each_expectation_is_hashed_once_and_one_that_an_apply_adds_is_known_too() {
        let mut digests = ExpectedDigests::default();
        let mut expectations = vec![directory("/etc/a", 0o755), directory("/etc/b", 0o755)];
        let mut hashed = 0;
        let mut have_all = |expectations: &[Expectation], asked: &[Expectation]| {
            let asked: Vec<String> = asked.iter().map(writer_protocol::digest).collect();
            digests.have_all_by(expectations, &asked, |expectation| {
                hashed += 1;
                writer_protocol::digest(expectation)
            })
        };
        for _ in 0..3 {
            assert!(have_all(&expectations, &expectations));
            assert!(!have_all(&expectations, &[directory("/etc/a", 0o755), directory("/etc/a", 0o700)]));
        }
        let added = directory("/etc/c", 0o755);
        assert!(!have_all(&expectations, std::slice::from_ref(&added)));
        expectations.push(added);
        assert!(have_all(&expectations, &expectations[1..]));
        assert_eq!(hashed, 3);
    }

    #[test]
    fn a_text_that_is_no_digest_is_none_of_an_expectation() {
        let expectations = [directory("/etc/a", 0o755)];
        for text in ["", "00", &"0".repeat(64), &"x".repeat(64)] {
            assert!(!ExpectedDigests::default().have_all(&expectations, &[text.to_owned()]), "{text}");
        }
    }
}
