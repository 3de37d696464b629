//! Whether the daemon's loop hangs for good.
//!
//! In: the beats of the loop. Out: the moment at which it has not worked for too long. The kubelet only sees that the process of a
//! container runs, so the daemon ends itself. The kernel programs are pinned, and record changes until the next start.

use super::published::Published;
use std::future::pending;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the loop may not work. It is longer than the watchdog of the systemd unit, so systemd comes first.
pub(super) const LIMIT: Duration = Duration::from_secs(90);

/// The exit code of a daemon whose loop hangs: that of each failure.
pub(super) const EXIT_CODE: i32 = 3;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_secs(10);

/// Waits until the loop has not worked for [`LIMIT`]. The time begins with the first status, because a start may take long, and does not
/// pass while the machine is suspended. A loop that has ended does not hang.
pub(super) async fn loop_hangs(mut published: Published) {
    if published.status.wait_for(Option::is_some).await.is_err() {
        return pending().await;
    }
    let (mut last, mut since) = (published.last_beat(), Instant::now());
    loop {
        sleep(PAUSE).await;
        let beat = published.last_beat();
        if beat != last {
            (last, since) = (beat, Instant::now());
        } else if published.status.has_changed().is_err() {
            return pending().await;
        } else if since.elapsed() >= LIMIT {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::channel;
    use super::*;
    use crate::clock::{Clock, SystemClock};
    use std::sync::Arc;
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_hours(1);

    fn clock() -> Arc<dyn Clock> {
        Arc::new(SystemClock)
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_that_works_or_has_not_begun_or_has_ended_does_not_hang() {
        let (mut sender, published) = channel(clock(), PAUSE);
        assert!(timeout(LONG, loop_hangs(published.clone())).await.is_err(), "it has not begun");
        sender.publish(b"{}".to_vec());
        let works = async {
            for _ in 0..100 {
                sleep(LIMIT / 2).await;
                sender.beat();
            }
        };
        tokio::select! {
            () = works => {}
            () = loop_hangs(published.clone()) => panic!("it works"),
        }
        drop(sender);
        assert!(timeout(LONG, loop_hangs(published)).await.is_err(), "it has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn a_loop_without_a_beat_hangs_after_the_limit() {
        let (mut sender, published) = channel(clock(), PAUSE);
        sender.publish(b"{}".to_vec());
        let began = Instant::now();
        loop_hangs(published).await;
        assert!((LIMIT..LIMIT + 2 * PAUSE).contains(&began.elapsed()));
        drop(sender);
    }
}
