//! How much of the log each user may fill with records that need no rights: denials and executions.
//!
//! In: a user, the size of an entry, the time. Out: whether the entry fits, and the counts of entries that did not. One user's
//! entries take no room from another's, and none from changes, which have no budget. No I/O.

use sensor_model::record::{Actor, RecordKind};
use std::collections::{BTreeMap, HashMap};

/// Bytes that a user may fill at once.
const AT_ONCE: u64 = 256 << 10;

/// Time in which an empty budget refills.
const REFILL_NS: u64 = 3600 * SECOND_NS;

const SECOND_NS: u64 = 1_000_000_000;

/// Users with a budget of their own; later ones share one.
const USERS: usize = 32;

/// Time between two records that count what did not fit.
const COUNT_EVERY_NS: u64 = 600 * SECOND_NS;

/// Budgets of all users.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    accounts: HashMap<Account, Budget>,
}

/// Whose budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Account {
    /// Root's, without a limit: root could write to the log itself.
    Root,
    /// A user's.
    User(u32),
    /// The budget that later users share.
    Others,
}

#[derive(Debug)]
struct Budget {
    left: u64,
    at_ns: u64,
    over: BTreeMap<&'static str, Over>,
    counted_ns: u64,
}

/// Entries of one kind of one user for which there was no room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Over {
    pub(super) account: Account,
    pub(super) kind: RecordKind,
    pub(super) count: u64,
    /// Boot-time nanoseconds of the first and the last.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

impl Account {
    /// The budget of an actor's entries. `is_named`: the host has a user of that number. Other numbers belong to user namespaces,
    /// of which one user may have thousands; they count as the user that logged in. A named user's login does not count: a
    /// process that never logged in can set any.
    pub(super) fn of(actor: &Actor, is_named: bool) -> Self {
        match (actor.uid, actor.login_uid) {
            (0, _) => Self::Root,
            (_, Some(login)) if !is_named && login != 0 => Self::User(login),
            (uid, _) => Self::User(uid),
        }
    }
}

impl Budgets {
    /// Whether there is room for an entry of so many bytes; it is taken then.
    pub(super) fn takes(&mut self, account: Account, bytes: usize, now: u64) -> bool {
        if account == Account::Root {
            return true;
        }
        let (_, budget) = self.budget(account, now);
        let rest = budget.left.checked_sub(bytes as u64);
        budget.left = rest.unwrap_or(budget.left);
        rest.is_some()
    }

    /// Counts entries that did not fit, and refusals that the kernel programs only counted.
    pub(super) fn count(&mut self, over: Over, now: u64) {
        let (account, budget) = self.budget(over.account, now);
        if budget.over.is_empty() {
            budget.counted_ns = now;
        }
        let before =
            budget.over.entry(over.kind.as_str()).or_insert_with(|| Over { account, count: 0, ..over });
        before.count += over.count;
        before.last_ns = over.last_ns;
    }

    /// Counts that are due for a record; with `u64::MAX` all of them.
    pub(super) fn ended(&mut self, now: u64) -> Vec<Over> {
        let due = |budget: &&mut Budget| now.saturating_sub(budget.counted_ns) >= COUNT_EVERY_NS;
        let mut over: Vec<Over> = self
            .accounts
            .values_mut()
            .filter(due)
            .flat_map(|budget| std::mem::take(&mut budget.over).into_values())
            .collect();
        over.sort_by_key(|over| (over.first_ns, over.last_ns));
        over
    }

    fn budget(&mut self, mut account: Account, now: u64) -> (Account, &mut Budget) {
        if self.accounts.len() >= USERS && !self.accounts.contains_key(&account) {
            // A full budget carries no information.
            self.accounts.retain(|_, budget| {
                budget.refill(now);
                budget.left < AT_ONCE || !budget.over.is_empty()
            });
            if self.accounts.len() >= USERS {
                account = Account::Others;
            }
        }
        let full = || Budget { left: AT_ONCE, at_ns: now, over: BTreeMap::new(), counted_ns: now };
        let budget = self.accounts.entry(account).or_insert_with(full);
        budget.refill(now);
        (account, budget)
    }
}

impl Budget {
    fn refill(&mut self, now: u64) {
        let bytes = u128::from(now.saturating_sub(self.at_ns)) * u128::from(AT_ONCE) / u128::from(REFILL_NS);
        if bytes > 0 {
            let bytes = u64::try_from(bytes).unwrap_or(AT_ONCE);
            self.left = self.left.saturating_add(bytes).min(AT_ONCE);
            self.at_ns = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: usize = 3000;

    fn over(account: Account, count: u64, at_ns: u64) -> Over {
        Over { account, kind: RecordKind::Denied, count, first_ns: at_ns, last_ns: at_ns }
    }

    #[test]
    fn a_user_fills_no_more_than_the_budget_at_once_and_in_each_hour_as_much_again() {
        let mut budgets = Budgets::default();
        let mallory = Account::User(1000);
        let mut fill = |now| (0..10_000).filter(|_| budgets.takes(mallory, ENTRY, now)).count() * ENTRY;
        let all = usize::try_from(AT_ONCE).unwrap();
        let first = fill(5);
        assert!(first <= all && first > all - ENTRY);
        assert_eq!(fill(5), 0);
        let day: usize = (1..=24).map(|hour| fill(5 + hour * REFILL_NS)).sum();
        assert!(day <= 24 * all, "{day}");
        let slowly: usize = (1..=3600).map(|second| fill(5 + 24 * REFILL_NS + second * SECOND_NS)).sum();
        assert!(slowly <= all + ENTRY && slowly > all / 2, "{slowly}");
    }

    #[test]
    fn what_one_user_fills_is_taken_from_no_other_and_root_has_no_budget() {
        let mut budgets = Budgets::default();
        while budgets.takes(Account::User(1000), ENTRY, 5) {}
        assert!(budgets.takes(Account::User(1001), ENTRY, 5));
        assert!((0..10_000).all(|_| budgets.takes(Account::Root, 16 << 10, 5)));
    }

    #[test]
    fn numbers_that_no_user_of_the_host_has_are_those_of_the_login() {
        let actor = |uid, login_uid| Actor { uid, login_uid, ..Actor::default() };
        assert_eq!(Account::of(&actor(100_001, Some(1000)), false), Account::User(1000));
        assert_eq!(Account::of(&actor(100_001, None), false), Account::User(100_001));
        assert_eq!(Account::of(&actor(48, Some(1000)), true), Account::User(48), "a login may be forged");
        assert_eq!(Account::of(&actor(0, Some(1000)), true), Account::Root);
        assert_eq!(Account::of(&actor(100_001, Some(0)), false), Account::User(100_001));
    }

    #[test]
    fn whoever_has_many_numbers_shares_a_budget_from_some_number_on_and_others_keep_theirs() {
        let mut budgets = Budgets::default();
        assert!(budgets.takes(Account::User(7), ENTRY, 5));
        let taken =
            (100_000..200_000).filter(|uid| budgets.takes(Account::User(*uid), ENTRY, 5)).count() * ENTRY;
        assert!(budgets.accounts.len() <= USERS + 1);
        let shared = usize::try_from(AT_ONCE).unwrap();
        assert!(taken <= USERS * ENTRY + shared, "{taken}");
        assert!(budgets.takes(Account::User(7), ENTRY, 5));
        // Those who fill nothing any more make room.
        assert!(budgets.takes(Account::User(8), ENTRY, 5 + REFILL_NS));
        assert_eq!(budgets.accounts.len(), 1);
    }

    #[test]
    fn what_had_no_room_is_told_by_its_number_once_in_a_while_and_none_is_left_out() {
        let mut budgets = Budgets::default();
        let (one, other) = (Account::User(1000), Account::User(1001));
        for second in 0..1000 {
            budgets.count(over(one, 2, second * SECOND_NS), second * SECOND_NS);
        }
        budgets.count(over(other, 1, 999 * SECOND_NS), 999 * SECOND_NS);
        let told = budgets.ended(1000 * SECOND_NS);
        assert_eq!(told, [Over { last_ns: 999 * SECOND_NS, ..over(one, 2000, 0) }]);
        assert_eq!(budgets.ended(u64::MAX), [over(other, 1, 999 * SECOND_NS)]);
        assert_eq!(budgets.ended(u64::MAX), []);
    }
}
