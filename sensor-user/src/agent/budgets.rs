//! Each user's budget in the log, for records that need no rights: denials and executions.
//!
//! In: a user, the size of an entry, the time. Out: whether the entry fits, and the counts of entries that did not. It owns one
//! budget for each user. Changes have no budget, so no user's entries take room from them. No I/O.

use sensor_model::record::{Actor, RecordKind};
use std::collections::{BTreeMap, HashMap};

/// The size of a full budget in bytes.
const AT_ONCE: u64 = 256 << 10;

/// Time in which an empty budget refills.
const REFILL_NS: u64 = 3600 * SECOND_NS;

const SECOND_NS: u64 = 1_000_000_000;

/// The number of users with a budget of their own. Later users share one.
const USERS: usize = 32;

/// Time between two records that count the entries without room.
const COUNT_EVERY_NS: u64 = 600 * SECOND_NS;

/// Budgets of all users.
#[derive(Debug, Default)]
pub(super) struct Budgets {
    accounts: HashMap<Account, Budget>,
}

/// The owner of a budget.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Account {
    /// Root has no limit: root could write to the log itself.
    Root,
    /// One user.
    User(u32),
    /// All later users.
    Others,
}

#[derive(Debug)]
struct Budget {
    left: u64,
    at_ns: u64,
    over: BTreeMap<&'static str, OverBudget>,
    counted_ns: u64,
}

/// The entries of one kind by one user that did not fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct OverBudget {
    pub(super) account: Account,
    pub(super) kind: RecordKind,
    pub(super) count: u64,
    /// Boot-time nanoseconds of the first entry and of the last.
    pub(super) first_ns: u64,
    pub(super) last_ns: u64,
}

impl Account {
    /// The budget of an actor's entries. `is_named`: the host has a user of that number. Other numbers belong to user
    /// namespaces; one user may have thousands, so they use the budget of the login. A named user does not: a process that
    /// never logged in can set any login.
    pub(super) fn of(actor: &Actor, is_named: bool) -> Self {
        match (actor.uid, actor.login_uid) {
            (0, _) => Self::Root,
            (_, Some(login)) if !is_named && login != 0 => Self::User(login),
            (uid, _) => Self::User(uid),
        }
    }
}

impl Budgets {
    /// Takes room for an entry of so many bytes. Gives whether there was room.
    pub(super) fn takes(&mut self, account: Account, bytes: usize, now: u64) -> bool {
        if account == Account::Root {
            return true;
        }
        let (_, budget) = self.budget(account, now);
        let left = budget.left.checked_sub(bytes as u64);
        budget.left = left.unwrap_or(budget.left);
        left.is_some()
    }

    /// Counts entries that did not fit, and denials that the kernel programs only counted.
    pub(super) fn count(&mut self, over: OverBudget, now: u64) {
        let (account, budget) = self.budget(over.account, now);
        if budget.over.is_empty() {
            budget.counted_ns = now;
        }
        let before =
            budget.over.entry(over.kind.as_str()).or_insert_with(|| OverBudget { account, count: 0, ..over });
        before.count += over.count;
        before.last_ns = over.last_ns;
    }

    /// The counts that are due for a record; with `u64::MAX` all counts.
    pub(super) fn ended(&mut self, now: u64) -> Vec<OverBudget> {
        let due = |budget: &&mut Budget| now.saturating_sub(budget.counted_ns) >= COUNT_EVERY_NS;
        let mut over: Vec<OverBudget> = self
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

    fn over(account: Account, count: u64, at_ns: u64) -> OverBudget {
        OverBudget { account, kind: RecordKind::Denied, count, first_ns: at_ns, last_ns: at_ns }
    }

    #[test]
    fn a_user_fills_one_budget_at_once_and_one_more_in_each_hour() {
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
    fn each_user_has_a_budget_of_their_own_and_root_has_no_limit() {
        let mut budgets = Budgets::default();
        while budgets.takes(Account::User(1000), ENTRY, 5) {}
        assert!(budgets.takes(Account::User(1001), ENTRY, 5));
        assert!((0..10_000).all(|_| budgets.takes(Account::Root, 16 << 10, 5)));
    }

    #[test]
    fn user_numbers_that_the_host_does_not_name_use_the_budget_of_the_login() {
        let actor = |uid, login_uid| Actor { uid, login_uid, ..Actor::default() };
        assert_eq!(Account::of(&actor(100_001, Some(1000)), false), Account::User(1000));
        assert_eq!(Account::of(&actor(100_001, None), false), Account::User(100_001));
        assert_eq!(
            Account::of(&actor(48, Some(1000)), true),
            Account::User(48),
            "a process can set any login"
        );
        assert_eq!(Account::of(&actor(0, Some(1000)), true), Account::Root);
        assert_eq!(Account::of(&actor(100_001, Some(0)), false), Account::User(100_001));
    }

    #[test]
    fn many_user_numbers_share_one_budget_and_other_users_keep_theirs() {
        let mut budgets = Budgets::default();
        assert!(budgets.takes(Account::User(7), ENTRY, 5));
        let taken =
            (100_000..200_000).filter(|uid| budgets.takes(Account::User(*uid), ENTRY, 5)).count() * ENTRY;
        assert!(budgets.accounts.len() <= USERS + 1);
        let shared = usize::try_from(AT_ONCE).unwrap();
        assert!(taken <= USERS * ENTRY + shared, "{taken}");
        assert!(budgets.takes(Account::User(7), ENTRY, 5));
        // A full budget makes room for another user.
        assert!(budgets.takes(Account::User(8), ENTRY, 5 + REFILL_NS));
        assert_eq!(budgets.accounts.len(), 1);
    }

    #[test]
    fn entries_without_room_are_counted_in_records_and_none_is_left_out() {
        let mut budgets = Budgets::default();
        let (one, other) = (Account::User(1000), Account::User(1001));
        for second in 0..1000 {
            budgets.count(over(one, 2, second * SECOND_NS), second * SECOND_NS);
        }
        budgets.count(over(other, 1, 999 * SECOND_NS), 999 * SECOND_NS);
        let counted = budgets.ended(1000 * SECOND_NS);
        assert_eq!(counted, [OverBudget { last_ns: 999 * SECOND_NS, ..over(one, 2000, 0) }]);
        assert_eq!(budgets.ended(u64::MAX), [over(other, 1, 999 * SECOND_NS)]);
        assert_eq!(budgets.ended(u64::MAX), []);
    }
}
