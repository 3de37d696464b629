//! The measured operations, in their own process.
//!
//! In: names of operations and an unmanaged folder. Out: nanoseconds of each operation as JSON on standard output; with counted
//! instructions a nanosecond is an instruction. Each operation runs in loops, and the best loop counts, so that timer ticks and
//! the daemon's timers do not count. For executions the median counts.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{PipeReader, PipeWriter, Read as _, Write as _, pipe};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use anyhow::{Context as _, Result, bail};

/// The first argument of the guest's program that makes it measure.
pub const ARGUMENT: &str = "measure";

/// Every operation, in the order of the table.
pub const ALL: [&str; 9] =
    ["getppid", "open-read", "open-write", "write", "read", "pipe", "rename", "create-unlink", "exec"];

/// The name for the changes of managed files, which have their own table.
pub const CHANGES: &str = "changes";

/// Operations for which the hooks on reads and writes run.
pub const READ_WRITE: [&str; 3] = ["write", "read", "pipe"];

/// Loops of each operation, of which the best counts. One more loop before them warms up.
const LOOPS: u32 = 7;
/// Operations in a loop.
const REPEATS: u32 = 2_000;
/// Executions, of which the median counts. One takes a quarter of the time between two timer ticks, so every loop would contain
/// ticks. Their number would change the mean by more than the watcher does.
const EXECUTIONS: usize = 201;
/// Files that the opens use in turns, so that the result does not depend on one inode number.
const FILES: usize = 16;

/// The objects that the operations use.
struct BenchObjects {
    files: Vec<PathBuf>,
    open: File,
    reader: PipeReader,
    writer: PipeWriter,
    names: [PathBuf; 2],
    fresh: PathBuf,
    buffer: [u8; 64],
}

impl BenchObjects {
    fn new(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let files: Vec<PathBuf> = (0..FILES).map(|number| folder.join(format!("file-{number}"))).collect();
        for file in &files {
            fs::write(file, [b'x'; 4096])?;
        }
        let names = [folder.join("name-a"), folder.join("name-b")];
        fs::write(&names[0], "x")?;
        let open = OpenOptions::new().read(true).write(true).open(&files[0])?;
        let (reader, writer) = pipe()?;
        Ok(Self { files, open, reader, writer, names, fresh: folder.join("fresh"), buffer: [b'y'; 64] })
    }

    /// One operation; `turn` counts them.
    fn once(&mut self, operation: &str, turn: usize) -> Result<()> {
        match operation {
            "getppid" => {
                std::hint::black_box(std::os::unix::process::parent_id());
            }
            "open-read" => drop(File::open(&self.files[turn % FILES])?),
            "open-write" => drop(OpenOptions::new().write(true).open(&self.files[turn % FILES])?),
            "write" => self.open.write_all_at(&self.buffer, 0)?,
            "read" => self.open.read_exact_at(&mut self.buffer, 0)?,
            "pipe" => {
                self.writer.write_all(&self.buffer)?;
                self.reader.read_exact(&mut self.buffer)?;
            }
            "rename" => fs::rename(&self.names[turn % 2], &self.names[(turn + 1) % 2])?,
            "create-unlink" => {
                drop(File::create_new(&self.fresh)?);
                fs::remove_file(&self.fresh)?;
            }
            "exec" => {
                let status = Command::new("/bin/busybox").arg("true").status()?;
                if !status.success() {
                    bail!("busybox true: {status}");
                }
            }
            other => bail!("there is no operation {other}"),
        }
        Ok(())
    }

    /// Nanoseconds of one operation.
    fn measure(&mut self, operation: &str) -> Result<f64> {
        if operation == "exec" {
            return self.median(operation);
        }
        let mut best = f64::INFINITY;
        for warm in 0..=LOOPS {
            let start = Instant::now();
            for turn in 0..REPEATS as usize {
                self.once(operation, turn)?;
            }
            let took = start.elapsed().as_secs_f64() * 1e9 / f64::from(REPEATS);
            if warm > 0 {
                best = best.min(took);
            }
        }
        Ok(best)
    }

    /// The median of single operations, in nanoseconds.
    fn median(&mut self, operation: &str) -> Result<f64> {
        let mut times = Vec::with_capacity(EXECUTIONS);
        for turn in 0..EXECUTIONS {
            let start = Instant::now();
            self.once(operation, turn)?;
            times.push(start.elapsed());
        }
        times.sort_unstable();
        Ok(times[EXECUTIONS / 2].as_secs_f64() * 1e9)
    }
}

/// The measuring process: measures the operations in `arguments` (after the folder) and prints the results.
pub fn main(arguments: &[String]) -> Result<()> {
    let (folder, operations) = arguments.split_first().context("no folder")?;
    if operations == [CHANGES] {
        println!("{}", serde_json::to_string(&super::changes::measure()?)?);
        return Ok(());
    }
    let mut stage = BenchObjects::new(Path::new(folder))?;
    let mut measured = BTreeMap::new();
    for operation in operations {
        measured.insert(operation, stage.measure(operation).with_context(|| operation.clone())?);
    }
    println!("{}", serde_json::to_string(&measured)?);
    Ok(())
}

/// Starts a measuring process and gives its results.
pub fn measure(folder: &Path, operations: &[&str]) -> Result<BTreeMap<String, f64>> {
    let output = Command::new("/proc/self/exe")
        .arg(ARGUMENT)
        .arg(folder)
        .args(operations)
        .output()
        .context("cannot start the measuring process")?;
    if !output.status.success() {
        bail!("measuring: {}: {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    serde_json::from_slice(&output.stdout).context("no measurements")
}
