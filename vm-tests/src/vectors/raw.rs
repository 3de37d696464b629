//! System calls without a safe wrapper, as a generated program.
//!
//! In: system calls one after the other, whose arguments may be results of earlier ones. Out: the smallest ELF program
//! for x86-64 that makes them, executed. The first call that fails ends it with the error number. So a child of the
//! performing process makes the change.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail};

/// Address of the program, and address of its data, which is behind all code that a program can need.
const BASE: u64 = 0x40_0000;
const HEADERS: u64 = 64 + 56;
const DATA: u64 = BASE + CODE_BYTES;
const CODE_BYTES: u64 = 0x1000;

/// An argument.
#[derive(Debug, Clone, Copy)]
pub(super) enum Value {
    /// The number itself.
    Number(u64),
    /// The eight bytes at this address at the time of the call.
    At(u64),
}

impl From<u64> for Value {
    fn from(number: u64) -> Self {
        Self::Number(number)
    }
}

/// A program under construction.
#[derive(Debug, Default)]
pub(super) struct RawProgram {
    code: Vec<u8>,
    data: Vec<u8>,
}

impl RawProgram {
    /// Puts bytes into memory; returns their address.
    pub(super) fn data(&mut self, bytes: &[u8]) -> u64 {
        let at = DATA + self.data.len() as u64;
        self.data.extend(bytes);
        self.data.resize(self.data.len().next_multiple_of(8), 0);
        at
    }

    /// Puts a path into memory; returns its address.
    pub(super) fn path(&mut self, path: &Path) -> u64 {
        let mut bytes = path.as_os_str().as_encoded_bytes().to_vec();
        bytes.push(0);
        self.data(&bytes)
    }

    /// Puts words of eight bytes into memory; returns their address.
    pub(super) fn words(&mut self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        self.data(&bytes)
    }

    /// Makes a system call; returns its result.
    pub(super) fn call(&mut self, number: u32, arguments: &[Value]) -> Value {
        // mov register, imm64; mov register, [register]: rdi, rsi, rdx, r10, r8, r9
        const REGISTERS: [([u8; 2], [u8; 3]); 6] = [
            ([0x48, 0xbf], [0x48, 0x8b, 0x3f]),
            ([0x48, 0xbe], [0x48, 0x8b, 0x36]),
            ([0x48, 0xba], [0x48, 0x8b, 0x12]),
            ([0x49, 0xba], [0x4d, 0x8b, 0x12]),
            ([0x49, 0xb8], [0x4d, 0x8b, 0x00]),
            ([0x49, 0xb9], [0x4d, 0x8b, 0x09]),
        ];
        for (value, (number, memory)) in arguments.iter().zip(REGISTERS) {
            self.load(*value, number, memory);
        }
        // mov eax, number; syscall
        self.code.push(0xb8);
        self.code.extend(number.to_le_bytes());
        self.code.extend([0x0f, 0x05]);
        // test rax, rax; jns +11; mov edi, eax; neg edi; mov eax, 231 (exit_group); syscall
        self.code
            .extend([0x48, 0x85, 0xc0, 0x79, 0x0b, 0x89, 0xc7, 0xf7, 0xdf, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05]);
        let result = self.data(&[0; 8]);
        self.save(result, &[0x48, 0x89, 0x03]);
        Value::At(result)
    }

    /// Stores a value's eight bytes, or its lower four, at an address of the program's data.
    pub(super) fn put(&mut self, value: Value, address: u64, bytes: usize) {
        self.load(value, [0x48, 0xb8], [0x48, 0x8b, 0x00]);
        self.save(address, if bytes == 4 { &[0x89, 0x03] } else { &[0x48, 0x89, 0x03] });
    }

    /// Sleeps.
    pub(super) fn pause(&mut self, seconds: u64) {
        const NANOSLEEP: u32 = 35;
        let time = self.words(&[seconds, 0]);
        let _: Value = self.call(NANOSLEEP, &[time.into(), 0.into()]);
    }

    /// Stores eight bytes at an address that a call returned.
    pub(super) fn store(&mut self, bytes: [u8; 8], address: Value) {
        // mov rbx, address; mov rax, bytes; mov [rbx], rax
        self.load(address, [0x48, 0xbb], [0x48, 0x8b, 0x1b]);
        self.code.extend([0x48, 0xb8]);
        self.code.extend(bytes);
        self.code.extend([0x48, 0x89, 0x03]);
    }

    /// Stores four bytes at `base` plus the offset in the four bytes at `beyond`.
    pub(super) fn store_beyond(&mut self, base: Value, beyond: u64, bytes: [u8; 4]) {
        self.reach(base, beyond);
        // mov dword [rbx], bytes
        self.code.extend([0xc7, 0x03]);
        self.code.extend(bytes);
    }

    /// Checks a result that is not a system call's, at `base` plus the offset at `beyond` plus `more`. An error ends the
    /// program as a failed call does.
    pub(super) fn check_beyond(&mut self, base: Value, beyond: u64, more: u8) {
        self.reach(base, beyond);
        // mov eax, [rbx + more]; test eax, eax; jns +11; mov edi, eax; neg edi; mov eax, 231 (exit_group); syscall
        self.code.extend([
            0x8b, 0x43, more, 0x85, 0xc0, 0x79, 0x0b, 0x89, 0xc7, 0xf7, 0xdf, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05,
        ]);
    }

    /// mov rbx, base; mov rcx, beyond; mov eax, [rcx]; add rbx, rax
    fn reach(&mut self, base: Value, beyond: u64) {
        self.load(base, [0x48, 0xbb], [0x48, 0x8b, 0x1b]);
        self.code.extend([0x48, 0xb9]);
        self.code.extend(beyond.to_le_bytes());
        self.code.extend([0x8b, 0x01, 0x48, 0x01, 0xc3]);
    }

    /// Copies words of the program's data to an address that a call returned.
    pub(super) fn copy(&mut self, from: u64, words: u8, to: Value) {
        self.load(to, [0x48, 0xbb], [0x48, 0x8b, 0x1b]);
        for word in 0..words {
            self.load(Value::At(from + u64::from(word) * 8), [0x48, 0xb8], [0x48, 0x8b, 0x00]);
            // mov [rbx + 8 * word], rax
            self.code.extend([0x48, 0x89, 0x43, word * 8]);
        }
    }

    fn load(&mut self, value: Value, number: [u8; 2], memory: [u8; 3]) {
        let (Value::Number(word) | Value::At(word)) = value;
        self.code.extend(number);
        self.code.extend(word.to_le_bytes());
        if let Value::At(_) = value {
            self.code.extend(memory);
        }
    }

    /// mov rbx, address; then the store from rax.
    fn save(&mut self, address: u64, store: &[u8]) {
        self.code.extend([0x48, 0xbb]);
        self.code.extend(address.to_le_bytes());
        self.code.extend(store);
    }

    /// The program, with an exit status of 0 after its last call.
    fn elf(mut self) -> Vec<u8> {
        // xor edi, edi; mov eax, 231 (exit_group); syscall
        self.code.extend([0x31, 0xff, 0xb8, 0xe7, 0, 0, 0, 0x0f, 0x05]);
        let mut body = self.code;
        assert!(body.len() as u64 <= CODE_BYTES - HEADERS, "the code reaches into the data");
        body.resize(usize::try_from(CODE_BYTES - HEADERS).unwrap_or(0), 0);
        body.extend(self.data);
        elf(&body, 7)
    }

    /// Executes the program and waits for its end.
    pub(super) fn run(self) -> Result<()> {
        let program = format!("/run/raw-{}", std::process::id());
        fs::write(&program, self.elf())?;
        fs::set_permissions(&program, Permissions::from_mode(0o755))?;
        let status = Command::new(&program).status().context("execute the system calls")?;
        match status.code() {
            Some(0) => Ok(()),
            Some(code) => Err(nix::Error::from_raw(code)).context("a system call failed"),
            None => bail!("the system calls ended with {status}"),
        }
    }
}

/// The smallest ELF program for x86-64. It has one segment with these rights (1: execute, 2: write, 4: read), which
/// starts with its code.
pub(super) fn elf(body: &[u8], rights: u32) -> Vec<u8> {
    let length = HEADERS + body.len() as u64;
    let mut elf = b"\x7fELF\x02\x01\x01".to_vec();
    elf.resize(16, 0);
    let half = |elf: &mut Vec<u8>, values: &[u16]| elf.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    let word = |elf: &mut Vec<u8>, values: &[u32]| elf.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    let long = |elf: &mut Vec<u8>, values: &[u64]| elf.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    // Executable, x86-64, version 1; entry, program headers, no sections; sizes and counts.
    half(&mut elf, &[2, 62]);
    word(&mut elf, &[1]);
    long(&mut elf, &[BASE + HEADERS, 64, 0]);
    word(&mut elf, &[0]);
    half(&mut elf, &[64, 56, 1, 0, 0, 0]);
    // One segment: offset, address twice, length twice, alignment.
    word(&mut elf, &[1, rights]);
    long(&mut elf, &[0, BASE, BASE, length, length, 0x1000]);
    elf.extend(body);
    elf
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    /// Held while a test writes a program and executes it. A process that another test forks meanwhile inherits the open file, and
    /// the kernel executes no file that is open for writing (`ETXTBSY`).
    static FORKS: std::sync::Mutex<()> = std::sync::Mutex::new(());

    const OPEN: u32 = 2;
    const CLOSE: u32 = 3;
    const PWRITE: u32 = 18;

    #[test]
    fn calls_are_made_in_order_and_use_results_of_earlier_ones() {
        let directory = std::env::temp_dir().join(format!("raw-test-{}", std::process::id()));
        fs::create_dir_all(&directory).expect("a directory");
        let file = directory.join("file");
        fs::write(&file, "0123456789").expect("a file");
        let mut program = RawProgram::default();
        let (path, text) = (program.path(&file), program.data(b"drift"));
        let opened = program.call(OPEN, &[path.into(), 1.into(), 0.into()]);
        let _: Value = program.call(PWRITE, &[opened, text.into(), 5.into(), 2.into()]);
        let _: Value = program.call(CLOSE, &[opened]);
        let built = directory.join("program");
        let forks = FORKS.lock().expect("no test failed");
        fs::write(&built, program.elf()).expect("the program");
        fs::set_permissions(&built, Permissions::from_mode(0o755)).expect("its mode");
        let status = Command::new(&built).status().expect("it is executed");
        drop(forks);
        let text = fs::read_to_string(&file).expect("the file");
        fs::remove_dir_all(&directory).expect("to clean up");
        assert_eq!((status.code(), text.as_str()), (Some(0), "01drift789"));
    }

    /// Executes the program. Returns its exit status, and the content of the file that it writes.
    fn executed(name: &str, program: RawProgram, file: &Path) -> (Option<i32>, Vec<u8>) {
        let built = std::env::temp_dir().join(format!("raw-{name}-{}", std::process::id()));
        let forks = FORKS.lock().expect("no test failed");
        fs::write(&built, program.elf()).expect("the program");
        fs::set_permissions(&built, Permissions::from_mode(0o755)).expect("its mode");
        let status = Command::new(&built).status().expect("it is executed");
        drop(forks);
        fs::remove_file(&built).expect("to clean up");
        (status.code(), fs::read(file).unwrap_or_default())
    }

    #[test]
    fn values_at_an_offset_from_an_address_are_stored_and_checked() {
        let file = std::env::temp_dir().join(format!("raw-output-{}", std::process::id()));
        fs::write(&file, "").expect("a file");
        for (result, status) in [(0i32, 0), (-(nix::Error::EXDEV as i32), nix::Error::EXDEV as i32)] {
            let mut program = RawProgram::default();
            let path = program.path(&file);
            let (distance, source, place) =
                (program.words(&[8]), program.words(&[7, 8]), program.words(&[0, 0]));
            program.copy(source, 2, place.into());
            program.store_beyond(place.into(), distance, result.to_le_bytes());
            let opened = program.call(OPEN, &[path.into(), 1.into(), 0.into()]);
            let _: Value = program.call(PWRITE, &[opened, place.into(), 16.into(), 0.into()]);
            program.check_beyond((place - 4).into(), distance, 4);
            let mut wanted = [7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0];
            wanted[8..12].copy_from_slice(&result.to_le_bytes());
            assert_eq!(executed("beyond", program, &file), (Some(status), wanted.to_vec()));
        }
        fs::remove_file(&file).expect("to clean up");
    }

    #[test]
    fn the_first_call_that_fails_ends_it_with_its_error() {
        let mut program = RawProgram::default();
        let path = program.path(Path::new("/nowhere/at/all"));
        let _: Value = program.call(OPEN, &[path.into(), 0.into()]);
        let built = std::env::temp_dir().join(format!("raw-fails-{}", std::process::id()));
        let forks = FORKS.lock().expect("no test failed");
        fs::write(&built, program.elf()).expect("the program");
        fs::set_permissions(&built, Permissions::from_mode(0o755)).expect("its mode");
        let status = Command::new(&built).status().expect("it is executed");
        drop(forks);
        fs::remove_file(&built).expect("to clean up");
        assert_eq!(status.code(), Some(nix::Error::ENOENT as i32));
    }
}
