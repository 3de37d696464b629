//! Whether an emulated processor sleeps although an interrupt waits for it.
//!
//! In: the text of QEMU's monitor about processors and interrupt controllers. Out: a line for each processor, and whether one is stalled.
//! A processor takes an interrupt at once if its flags allow it. So a stalled processor is a fault of the emulator, which did not wake the
//! processor's thread, and not a fault of the product.

/// The flag that allows interrupts (`IF`).
const INTERRUPTS: u32 = 1 << 9;

/// A line for each processor.
pub(super) fn lines(text: &str) -> Vec<String> {
    processors(text).iter().map(ProcessorState::line).collect()
}

/// Whether a processor sleeps although an interrupt waits for it, by two texts that were taken one after the other. In one text alone it
/// may be waking up.
pub(super) fn is_stalled(first: &str, second: &str) -> bool {
    let (first, second) = (processors(first), processors(second));
    first
        .iter()
        .zip(&second)
        .any(|(first, second)| first.is_stalled() && second.is_stalled() && first == second)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct ProcessorState<'a> {
    number: &'a str,
    flags: u32,
    halted: bool,
    /// Interrupts that wait.
    pending: &'a str,
    /// Interrupts that are being served.
    served: &'a str,
    timer: &'a str,
}

impl ProcessorState<'_> {
    fn is_stalled(&self) -> bool {
        self.halted
            && self.flags & INTERRUPTS != 0
            && !matches!(self.pending, "" | "(none)")
            && self.served == "(none)"
    }

    fn line(&self) -> String {
        let Self { number, flags, halted, pending, served, timer } = self;
        format!(
            "processor {number}: flags {flags:#x}, halted {halted}, waiting {pending}, served {served}, timer {timer}"
        )
    }
}

fn processors(text: &str) -> Vec<ProcessorState<'_>> {
    let mut found: Vec<ProcessorState<'_>> = Vec::new();
    let mut controller = 0;
    for line in text.lines().map(str::trim) {
        if let Some(number) = line.strip_prefix("CPU#") {
            found.push(ProcessorState { number, ..ProcessorState::default() });
        } else if let Some(number) = line.strip_prefix("dumping local APIC state for CPU ") {
            controller = number.parse().unwrap_or(usize::MAX);
        } else if let Some((_, flags)) = line.split_once("FL=")
            && let Some(processor) = found.last_mut()
        {
            let digits = flags.split_whitespace().next().unwrap_or_default();
            processor.flags = u32::from_str_radix(digits, 16).unwrap_or_default();
            processor.halted = line.ends_with("HLT=1");
        } else if let Some(processor) = found.get_mut(controller) {
            match line.split_once('\t') {
                Some(("IRR", value)) => processor.pending = value.trim(),
                Some(("ISR", value)) => processor.served = value.trim(),
                Some(("Timer", value)) => processor.timer = value.trim(),
                _ => {}
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(flags: &str, halted: u8, pending: &str) -> String {
        format!(
            "\r\nCPU#0\nRAX=0000000000000000\nRIP=ffffffff81 RFL={flags} [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT={halted}\n\
             CPU#1\nRIP=ffffffff81 RFL=00000246 [---Z-P-] CPL=0 II=0 A20=1 SMM=0 HLT=1\n\
             dumping local APIC state for CPU 0\n\nTimer\t DCR=0xb initial_count = 0 current_count = 0\nISR\t (none)\nIRR\t {pending}\n\
             dumping local APIC state for CPU 1\n\nISR\t (none)\nIRR\t (none)\n"
        )
    }

    #[test]
    fn a_processor_is_stalled_that_twice_sleeps_with_the_same_interrupt_waiting() {
        let stalled = text("00000246", 1, "236 (level)");
        assert!(is_stalled(&stalled, &stalled));
        for other in [text("00000246", 0, "236"), text("00000046", 1, "236"), text("00000246", 1, "(none)")] {
            assert!(!is_stalled(&stalled, &other) && !is_stalled(&other, &other), "{other}");
        }
        assert!(!is_stalled("", ""));
    }

    #[test]
    fn each_processor_has_a_line() {
        let lines = lines(&text("00000246", 1, "236"));
        assert_eq!(lines.len(), 2);
        assert!(
            lines[0]
                .starts_with("processor 0: flags 0x246, halted true, waiting 236, served (none), timer DCR")
        );
    }
}
