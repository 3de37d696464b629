//! `/proc/PID/stat` (proc(5)).

/// What `stat` says about a process. The last four places are dealt out anew at each execution.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// Name of the program, cut; the process may set it to whatever it wants.
    pub comm: String,
    /// Number of the parent.
    pub parent: u32,
    /// Device number of the controlling terminal, as the kernel packs it.
    pub terminal: u32,
    /// Ticks since boot.
    pub start: u64,
    /// Where code, stack, arguments and environment begin; 0 for all when that may not be read.
    pub places: [u64; 4],
}

impl Stat {
    /// Reads the file. The name in parentheses may itself hold parentheses and blanks, so the last parenthesis
    /// ends it. `None` for what is cut short.
    pub fn parse(text: &[u8]) -> Option<Self> {
        let text = String::from_utf8_lossy(text);
        let (front, rest) = text.rsplit_once(')')?;
        let (_, comm) = front.split_once('(')?;
        let fields: Vec<&str> = rest.split_whitespace().collect();
        // Counted behind the name: state is 0.
        Some(Self {
            comm: comm.to_owned(),
            parent: fields.get(1)?.parse().ok()?,
            terminal: fields.get(4)?.parse::<i32>().ok()?.cast_unsigned(),
            start: fields.get(19)?.parse().ok()?,
            places: [23, 25, 45, 47].map(|n| fields.get(n).and_then(|field| field.parse().ok()).unwrap_or(0)),
        })
    }

    /// Whether another program, or the same one anew, would show: kernel threads and what may not be read have no
    /// places.
    pub fn tells_executions(&self) -> bool {
        self.places.iter().all(|place| *place > 1)
    }
}
