//! Archives, made by hand.

/// An archive and the PAX records of its next entry.
#[derive(Debug, Clone, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    pax: Vec<u8>,
}

impl Archive {
    pub(crate) fn new() -> Self {
        Self::default()
    }

    /// Adds an entry: its type, name, mode, target and content.
    pub(crate) fn entry(mut self, kind: u8, name: &str, mode: u32, link: &str, content: &[u8]) -> Self {
        if !self.pax.is_empty() {
            let records = std::mem::take(&mut self.pax);
            self = self.entry(b'x', "pax", 0o644, "", &records);
        }
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}\0").as_bytes());
        put(108, format!("{:07o}\0", nix::unistd::geteuid().as_raw()).as_bytes());
        put(116, format!("{:07o}\0", nix::unistd::getegid().as_raw()).as_bytes());
        put(124, format!("{:011o}\0", content.len()).as_bytes());
        put(136, b"00000000000\0        ");
        put(156, &[kind]);
        put(157, link.as_bytes());
        put(257, b"ustar\x0000");
        let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
        block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.bytes.extend_from_slice(&block);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub(crate) fn file(self, name: &str, content: &str) -> Self {
        self.entry(b'0', name, 0o644, "", content.as_bytes())
    }

    pub(crate) fn directory(self, name: &str) -> Self {
        self.entry(b'5', name, 0o755, "", b"")
    }

    pub(crate) fn symlink(self, name: &str, target: &str) -> Self {
        self.entry(b'2', name, 0o777, target, b"")
    }

    pub(crate) fn hard_link(self, name: &str, target: &str) -> Self {
        self.entry(b'1', name, 0o644, target, b"")
    }

    /// Adds a PAX record to the next entry.
    pub(crate) fn pax(mut self, key: &str, value: &[u8]) -> Self {
        let rest = key.len() + value.len() + 3;
        let mut length = rest + 1;
        while length.to_string().len() + rest != length {
            length = length.to_string().len() + rest;
        }
        self.pax.extend_from_slice(format!("{length} {key}=").as_bytes());
        self.pax.extend_from_slice(value);
        self.pax.push(b'\n');
        self
    }

    /// The bytes, with the two blocks of zeros.
    pub(crate) fn end(mut self) -> Vec<u8> {
        self.bytes.extend_from_slice(&[0; 1024]);
        self.bytes
    }
}
