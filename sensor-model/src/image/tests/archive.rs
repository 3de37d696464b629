//! Archives, made by hand.

/// The bytes of an archive.
#[derive(Debug, Clone, Default)]
pub(super) struct Archive {
    bytes: Vec<u8>,
    pax: Vec<u8>,
}

/// The fields of a header.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fields<'a> {
    pub(super) kind: u8,
    pub(super) name: &'a [u8],
    pub(super) link: &'a [u8],
    pub(super) mode: u32,
    pub(super) owner: (u32, u32),
    pub(super) size: u64,
    pub(super) device: (u32, u32),
    pub(super) magic: &'a [u8; 8],
}

pub(super) const USTAR: &[u8; 8] = b"ustar\x0000";
pub(super) const GNU: &[u8; 8] = b"ustar  \0";

impl<'a> Fields<'a> {
    pub(super) fn new(kind: u8, name: &'a str) -> Self {
        Self {
            kind,
            name: name.as_bytes(),
            link: b"",
            mode: 0o644,
            owner: (0, 0),
            size: 0,
            device: (0, 0),
            magic: USTAR,
        }
    }

    pub(super) fn block(self) -> [u8; 512] {
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, self.name);
        put(100, format!("{:07o}\0", self.mode).as_bytes());
        put(108, format!("{:07o}\0", self.owner.0).as_bytes());
        put(116, format!("{:07o}\0", self.owner.1).as_bytes());
        put(124, format!("{:011o}\0", self.size).as_bytes());
        put(136, b"00000000000\0");
        put(156, &[self.kind]);
        put(157, self.link);
        put(257, self.magic);
        put(329, format!("{:07o}\0", self.device.0).as_bytes());
        put(337, format!("{:07o}\0", self.device.1).as_bytes());
        seal(&mut block);
        block
    }
}

/// Sets the checksum of a header.
pub(super) fn seal(block: &mut [u8; 512]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

impl Archive {
    pub(super) fn new() -> Self {
        Self::default()
    }

    /// Adds bytes as they are.
    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.bytes.extend_from_slice(bytes);
        self
    }

    /// Adds an entry with its content.
    pub(super) fn with(mut self, fields: Fields<'_>, content: &[u8]) -> Self {
        if !self.pax.is_empty() {
            let records = std::mem::take(&mut self.pax);
            let size = records.len() as u64;
            self = self.with(Fields { size, ..Fields::new(b'x', "pax") }, &records);
        }
        self.bytes.extend_from_slice(&fields.block());
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
        self
    }

    pub(super) fn file(self, name: &str, content: &str) -> Self {
        let size = content.len() as u64;
        self.with(Fields { size, ..Fields::new(b'0', name) }, content.as_bytes())
    }

    pub(super) fn directory(self, name: &str) -> Self {
        self.with(Fields { mode: 0o755, ..Fields::new(b'5', name) }, b"")
    }

    pub(super) fn symlink(self, name: &str, target: &str) -> Self {
        self.with(Fields { mode: 0o777, link: target.as_bytes(), ..Fields::new(b'2', name) }, b"")
    }

    pub(super) fn hard_link(self, name: &str, target: &str) -> Self {
        self.with(Fields { link: target.as_bytes(), ..Fields::new(b'1', name) }, b"")
    }

    /// Adds a PAX record to the next entry.
    pub(super) fn pax(mut self, key: &str, value: &[u8]) -> Self {
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

    /// Adds a long name of GNU tar (`L`) or a long target (`K`) for the next entry.
    pub(super) fn long(self, kind: u8, name: &str) -> Self {
        let content = format!("{name}\0");
        let size = content.len() as u64;
        let fields = Fields { size, magic: GNU, ..Fields::new(kind, "././@LongLink") };
        self.with(fields, content.as_bytes())
    }

    /// The archive with its two blocks of zeros.
    pub(super) fn end(self) -> Self {
        self.raw(&[0; 1024])
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}
