//! The processes that make the changes. The guest's program starts itself again as `act`.
//!
//! In: the id of a vector, or the name of a helper of a scenario, and a path. Out: the change, and an exit status.

use std::io::{BufRead as _, Write as _};
use std::path::Path;

use anyhow::{Context as _, Result, bail};

use crate::guest::pod as containers;
use crate::scenarios::{burst, flood, kube_apparmor, pod};
use crate::vectors::{Does, REFUSED, all, content};

/// Performs a vector in this process: `act ID PATH`. Returns the exit status.
pub fn perform(arguments: &[String]) -> Result<i32> {
    let [id, path] = arguments else { bail!("act needs a vector and a path") };
    let path = Path::new(path);
    if id == content::RECEIVER {
        content::receive(path)?;
        return Ok(0);
    }
    if id == burst::WRITER {
        burst::write(path)?;
        return Ok(0);
    }
    if id == flood::FLOODER {
        flood::attempt(path)?;
        return Ok(0);
    }
    if id == containers::CONTAINER {
        containers::contain(path)?;
        return Ok(0);
    }
    if id == containers::REPORTER {
        containers::contain_reporter(path)?;
        return Ok(0);
    }
    if id == pod::REPORTER {
        pod::ask_as(path)?;
        return Ok(0);
    }
    if id == kube_apparmor::CONFINED {
        kube_apparmor::confine(path)?;
        return Ok(0);
    }
    if id == kube_apparmor::ATTEMPTS {
        kube_apparmor::attempt(path);
        return Ok(0);
    }
    let vector = all().find(|vector| vector.id == id).with_context(|| format!("no vector {id}"))?;
    let result = match vector.does {
        Does::Call(act) => act(path),
        Does::Early(act) => act(path, &mut || {
            println!("ready");
            std::io::stdout().flush()?;
            let mut line = String::new();
            std::io::stdin().lock().read_line(&mut line)?;
            Ok(())
        }),
        Does::Shell(_) | Does::Shown { .. } | Does::NotPerformed(_) => {
            bail!("vector {id} has no code in this program")
        }
    };
    match result {
        Err(error) if refused(&error) => {
            eprintln!("{error:#}");
            Ok(REFUSED)
        }
        other => other.map(|()| 0),
    }
}

/// Whether an error means that the kernel or the file system lacks the operation.
fn refused(error: &anyhow::Error) -> bool {
    let code = error.chain().find_map(|cause| {
        cause
            .downcast_ref::<std::io::Error>()
            .and_then(std::io::Error::raw_os_error)
            .or_else(|| cause.downcast_ref::<rustix::io::Errno>().map(|e| e.raw_os_error()))
            .or_else(|| cause.downcast_ref::<nix::Error>().map(|e| *e as i32))
    });
    // overlayfs without `redirect_dir` returns EXDEV for a rename of a directory of its lower layer.
    let codes = [nix::Error::EOPNOTSUPP, nix::Error::ENOSYS, nix::Error::ENOTTY, nix::Error::EXDEV];
    codes.iter().any(|known| code == Some(*known as i32))
}
