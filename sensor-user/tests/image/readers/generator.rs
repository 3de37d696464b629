//! Random archives from a seed: ustar, GNU and PAX forms of names, numbers, links and sparse files.

/// Numbers from a seed (xorshift64*).
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below a limit.
    pub(super) fn below(&mut self, limit: u64) -> u64 {
        (self.next() >> 16) % limit
    }

    /// Whether the one of so many cases is there.
    fn is_one_of(&mut self, cases: u64) -> bool {
        self.below(cases) == 0
    }

    fn of<T: Copy>(&mut self, all: &[T]) -> T {
        all[usize::try_from(self.below(all.len() as u64)).unwrap()]
    }

    fn bytes(&mut self, length: u64) -> Vec<u8> {
        (0..length).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

/// An archive.
#[derive(Debug, Clone)]
pub(super) struct Generated {
    /// Its number, for messages.
    pub(super) number: u32,
    pub(super) bytes: Vec<u8>,
    /// Where its headers begin.
    headers: Vec<usize>,
    /// Where the records of its PAX headers are.
    records: Vec<std::ops::Range<usize>>,
}

/// Fields of a header.
#[derive(Clone)]
struct Header {
    kind: u8,
    name: Vec<u8>,
    prefix: Vec<u8>,
    link: Vec<u8>,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    device: (u32, u32),
    is_gnu: bool,
}

const USTAR: &[u8; 8] = b"ustar\x0000";
const GNU: &[u8; 8] = b"ustar  \0";

impl Generated {
    /// A valid archive with up to twelve entries.
    pub(super) fn new(number: u32, random: &mut Random) -> Self {
        let mut archive = Self { number, bytes: Vec::new(), headers: Vec::new(), records: Vec::new() };
        let mut files: Vec<(Vec<u8>, u32, (u32, u32))> = Vec::new();
        let mut directories: Vec<Vec<u8>> = vec![Vec::new()];
        for entry in 0..=random.below(12) {
            let above = directories[usize::try_from(random.below(directories.len() as u64)).unwrap()].clone();
            let name = name(entry, &above, random);
            let mode = random.of(&[0o644, 0o755, 0o600, 0o4755, 0o1777, 0o2711]);
            let owner = (random.of(&[0, 1, 1000, 70_000]), random.of(&[0, 5, 65_534]));
            let header = Header {
                kind: b'0',
                name: name.clone(),
                prefix: Vec::new(),
                link: Vec::new(),
                mode,
                owner,
                size: 0,
                device: (0, 0),
                is_gnu: random.is_one_of(2),
            };
            match random.below(12) {
                0..=3 => {
                    let content = content(random);
                    let kind = random.of(b"00007\0");
                    archive.entry(Header { kind, ..header }, &content, random);
                    files.push((name, mode, owner));
                }
                4 | 5 => {
                    archive.entry(Header { kind: b'5', mode: mode | 0o700, ..header }, b"", random);
                    directories.push(name);
                }
                6 => {
                    let link = link(random);
                    archive.entry(Header { kind: b'2', link, ..header }, b"", random);
                }
                7 if !files.is_empty() => {
                    let (link, mode, owner) =
                        files[usize::try_from(random.below(files.len() as u64)).unwrap()].clone();
                    archive.entry(Header { kind: b'1', link, mode, owner, ..header }, b"", random);
                }
                8 => archive.old_sparse(header, random),
                9 => archive.pax_sparse(header, random),
                // GNU tar unpacks devices for root alone, so that few archives have one.
                10 if random.is_one_of(8) => {
                    let (kind, device) = (random.of(b"34"), (7, 200));
                    archive.entry(Header { kind, device, ..header }, b"", random);
                }
                _ => archive.entry(Header { kind: b'6', ..header }, b"", random),
            }
        }
        archive.bytes.extend_from_slice(&[0; 1024]);
        archive
    }

    /// The archive with some bytes of headers and records changed. Most changed headers get a right checksum.
    pub(super) fn changed(mut self, random: &mut Random) -> Self {
        const LIKELY: &[u8] = b"\0 0123457\x80\xff/.LKxgS1257\n=ab";
        for _ in 0..=random.below(3) {
            let record = random.is_one_of(3).then(|| self.records.clone()).filter(|all| !all.is_empty());
            if let Some(records) = record {
                let range = &records[usize::try_from(random.below(records.len() as u64)).unwrap()];
                let at = range.start + usize::try_from(random.below(range.len() as u64)).unwrap();
                self.bytes[at] = random.of(LIKELY);
                continue;
            }
            let header = self.headers[usize::try_from(random.below(self.headers.len() as u64)).unwrap()];
            // The fields from the end of the name on decide more than the name itself.
            let at = if random.is_one_of(5) { random.below(512) } else { 100 + random.below(260) };
            self.bytes[header + usize::try_from(at).unwrap()] =
                if random.is_one_of(4) { random.next().to_le_bytes()[2] } else { random.of(LIKELY) };
            if !random.is_one_of(10) {
                seal(&mut self.bytes[header..header + 512]);
            }
        }
        if random.is_one_of(20) {
            let length = usize::try_from(random.below(self.bytes.len() as u64)).unwrap();
            self.bytes.truncate(length);
        }
        self
    }

    /// The PAX records, and the headers without the most of their names, for messages.
    pub(super) fn records(&self) -> String {
        let found = self.records.iter().filter_map(|range| self.bytes.get(range.clone()));
        let records = found.map(|records| format!("{}\n", records.escape_ascii()));
        let parts = |at: &usize| {
            let parts = [*at..*at + 9, *at + 98..*at + 160, *at + 250..*at + 360, *at + 480..*at + 500];
            let parts = parts.map(|part| self.bytes.get(part).unwrap_or_default().escape_ascii().to_string());
            format!("{at}: {}\n", parts.join(" … "))
        };
        records.chain(self.headers.iter().map(parts)).collect()
    }

    /// Adds an entry in one of the forms that can have its name and its numbers.
    fn entry(&mut self, mut header: Header, content: &[u8], random: &mut Random) {
        header.size = content.len() as u64;
        let mut records = Vec::new();
        let split = header.name.iter().take(150).rposition(|byte| *byte == b'/').filter(|at| *at > 0);
        let fits_split = split.is_some_and(|at| header.name.len() - at <= 100);
        let is_long = header.name.len() > 100;
        if let (Some(at), true, false) =
            (split, fits_split && (is_long || random.is_one_of(3)), header.is_gnu)
        {
            header.prefix = header.name[..at].to_vec();
            header.name = header.name[at + 1..].to_vec();
        } else if is_long && header.is_gnu {
            self.long(b'L', &header.name);
            header.name.truncate(100);
        } else if is_long || random.is_one_of(6) {
            record(&mut records, "path", &header.name);
            header.name = b"short".to_vec();
        }
        if header.link.len() > 100 && header.is_gnu {
            self.long(b'K', &header.link);
            header.link.truncate(100);
        } else if header.link.len() > 100 {
            record(&mut records, "linkpath", &header.link);
            header.link.truncate(100);
        }
        if random.is_one_of(6) && !header.is_gnu {
            record(&mut records, "uid", header.owner.0.to_string().as_bytes());
            record(&mut records, "gid", header.owner.1.to_string().as_bytes());
            header.owner = (3, 4);
        }
        if !content.is_empty() && random.is_one_of(6) && !header.is_gnu {
            record(&mut records, "size", content.len().to_string().as_bytes());
            record(&mut records, "mtime", b"1764000000.25");
        }
        self.pax(&records);
        self.block(&header.block(random), content);
    }

    /// Adds a PAX header for the next entry.
    fn pax(&mut self, records: &[u8]) {
        if records.is_empty() {
            return;
        }
        let header = Header { kind: b'x', size: records.len() as u64, ..Header::named(b"PaxHeaders/x") };
        self.block(&header.block(&mut Random::new(0)), records);
        let end = self.bytes.len() - (records.len().next_multiple_of(512) - records.len());
        self.records.push(end - records.len()..end);
    }

    /// Adds a long name of GNU tar for the next entry.
    fn long(&mut self, kind: u8, name: &[u8]) {
        let content = [name, b"\0"].concat();
        let size = content.len() as u64;
        let header = Header { kind, size, is_gnu: true, ..Header::named(b"././@LongLink") };
        self.block(&header.block(&mut Random::new(0)), &content);
    }

    /// Adds a sparse file in GNU tar's old form.
    fn old_sparse(&mut self, header: Header, random: &mut Random) {
        let (map, data, size) = sparse(random, 4);
        let header = Header { kind: b'S', size: data.len() as u64, is_gnu: true, ..header };
        let mut header = header;
        if header.name.len() > 100 {
            self.long(b'L', &header.name);
            header.name.truncate(100);
        }
        let mut block = header.block(random);
        for (place, (offset, length)) in map.iter().enumerate() {
            let at = 386 + place * 24;
            block[at..at + 12].copy_from_slice(format!("{offset:011o}\0").as_bytes());
            block[at + 12..at + 24].copy_from_slice(format!("{length:011o}\0").as_bytes());
        }
        block[483..495].copy_from_slice(format!("{size:011o}\0").as_bytes());
        seal(&mut block);
        self.block(&block, &data);
    }

    /// Adds a sparse file in one of GNU tar's PAX forms.
    fn pax_sparse(&mut self, header: Header, random: &mut Random) {
        let (map, data, size) = sparse(random, 6);
        let mut records = Vec::new();
        let mut content = Vec::new();
        record(&mut records, "GNU.sparse.name", &header.name);
        if random.is_one_of(2) {
            record(&mut records, "GNU.sparse.major", b"1");
            record(&mut records, "GNU.sparse.minor", b"0");
            record(&mut records, "GNU.sparse.realsize", size.to_string().as_bytes());
            content.extend_from_slice(format!("{}\n", map.len()).as_bytes());
            for (offset, length) in &map {
                content.extend_from_slice(format!("{offset}\n{length}\n").as_bytes());
            }
            content.resize(content.len().next_multiple_of(512), 0);
        } else {
            let pairs: Vec<String> =
                map.iter().map(|(offset, length)| format!("{offset},{length}")).collect();
            record(&mut records, "GNU.sparse.size", size.to_string().as_bytes());
            record(&mut records, "GNU.sparse.numblocks", map.len().to_string().as_bytes());
            record(&mut records, "GNU.sparse.map", pairs.join(",").as_bytes());
        }
        content.extend_from_slice(&data);
        self.pax(&records);
        let header = Header { size: content.len() as u64, name: b"GNUSparseFile.0/x".to_vec(), ..header };
        self.block(&Header { is_gnu: false, ..header }.block(random), &content);
    }

    fn block(&mut self, block: &[u8; 512], content: &[u8]) {
        self.headers.push(self.bytes.len());
        self.bytes.extend_from_slice(block);
        self.bytes.extend_from_slice(content);
        self.bytes.resize(self.bytes.len().next_multiple_of(512), 0);
    }
}

impl Header {
    fn named(name: &[u8]) -> Self {
        Self {
            kind: b'0',
            name: name.to_vec(),
            prefix: Vec::new(),
            link: Vec::new(),
            mode: 0o644,
            owner: (0, 0),
            size: 0,
            device: (0, 0),
            is_gnu: false,
        }
    }

    fn block(&self, random: &mut Random) -> [u8; 512] {
        let mut block = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| block[at..at + bytes.len()].copy_from_slice(bytes);
        let mut number = |value: u64, length: usize| {
            let (digits, spaces) = (length - 1, length - 2);
            match random.below(6) {
                // A number of a device in bytes is refused.
                0 if self.is_gnu && !matches!(self.kind, b'3' | b'4') => {
                    let mut bytes = vec![0; length];
                    bytes[length - 8.min(length)..]
                        .copy_from_slice(&value.to_be_bytes()[8 - 8.min(length)..]);
                    bytes[0] |= 0x80;
                    bytes
                }
                1 => format!("{value:spaces$o} \0").into_bytes(),
                2 => format!("{value:0digits$o} ").into_bytes(),
                _ => format!("{value:0digits$o}\0").into_bytes(),
            }
        };
        put(0, &self.name);
        put(100, &number(self.mode.into(), 8));
        put(108, &number(self.owner.0.into(), 8));
        put(116, &number(self.owner.1.into(), 8));
        put(124, &number(self.size, 12));
        put(136, b"14550000000\0");
        put(156, &[self.kind]);
        put(157, &self.link);
        put(257, if self.is_gnu { GNU } else { USTAR });
        if matches!(self.kind, b'3' | b'4') {
            put(329, &number(self.device.0.into(), 8));
            put(337, &number(self.device.1.into(), 8));
        }
        put(345, &self.prefix);
        seal(&mut block);
        block
    }
}

/// Sets the checksum of a header.
fn seal(block: &mut [u8]) {
    block[148..156].fill(b' ');
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
}

/// Adds a PAX record.
fn record(records: &mut Vec<u8>, key: &str, value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length.to_string().len() + rest != length {
        length = length.to_string().len() + rest;
    }
    records.extend_from_slice(format!("{length} {key}=").as_bytes());
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// A name that no other entry has, in one of lengths around those at which the forms change.
fn name(entry: u64, above: &[u8], random: &mut Random) -> Vec<u8> {
    let mut name = above.to_vec();
    if !name.is_empty() {
        name.push(b'/');
    }
    let length = random.of(&[1, 1, 3, 20, 97, 99, 120, 200]);
    let letter = random.of(b"abz_.-\xc3");
    name.extend(std::iter::repeat_n(letter, length).take(250));
    name.extend_from_slice(format!("{entry}").as_bytes());
    if random.is_one_of(4) {
        name.extend_from_slice(
            format!("/{}", "d".repeat(usize::try_from(random.below(150)).unwrap() + 1)).as_bytes(),
        );
    }
    name
}

/// The target of a symbolic link.
fn link(random: &mut Random) -> Vec<u8> {
    let length = usize::try_from(random.of(&[1, 50, 100, 101, 300])).unwrap();
    std::iter::repeat_n(random.of(b"txy"), length).collect()
}

fn content(random: &mut Random) -> Vec<u8> {
    let length = random.of(&[0, 1, 5, 511, 512, 513, 1024, 3000]);
    random.bytes(length)
}

/// A map of a sparse file, its data, and its size.
fn sparse(random: &mut Random, most: u64) -> (Vec<(u64, u64)>, Vec<u8>, u64) {
    let (mut map, mut data, mut end) = (Vec::new(), Vec::new(), 0);
    for _ in 0..random.below(most) {
        // GNU tar's blocks of data are multiples of 512 bytes, but for the last one.
        let (offset, length) = (end + 512 * random.below(9), 512 * (random.below(3) + 1));
        map.push((offset, length));
        data.extend(random.bytes(length));
        end = offset + length;
    }
    let size = end + random.of(&[0, 512, 700]);
    // The last entry of a map is the end of the file.
    map.truncate(usize::try_from(most).unwrap() - 1);
    map.push((size, 0));
    (map, data, size)
}
