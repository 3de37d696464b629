//! What the kernel has in the tables of mapped devices.
//!
//! In: the host's root, and numbers of devices. Out: the parameters of each device that dm-verity makes. Only a process with `CAP_SYS_ADMIN`
//! may ask (`ctl_ioctl()` in `drivers/md/dm-ioctl.c`), and the name and the UUID of a device in sysfs do not have its root hash. So a
//! process hands the answers over, together with the open control device. A descriptor of the control device gets readable at the first event
//! after it was opened, and each replaced table is such an event (`dm_swap_table()`, `dm_poll()`). Any process may wait for it. From the first
//! event on the answers are not used any more.
//!
//! Root could replace a table, have blocks of other content cached, and put the first table back. So what was read counts only together with
//! the descriptor that was open since. Its answers have a name that no other ones have, and each seal of a file has that name in it.

use super::resolve::{HANDLE, Root};
use nix::{
    errno::Errno,
    fcntl::{OFlag, open},
    libc::{makedev, mode_t},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::stat::{Mode, SFlag, fstat},
};
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use sensor_model::os::{VERITY_TARGET, VerityDevice};
use std::{
    collections::BTreeMap,
    fs, io,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::Path,
};
use zerocopy::{FromBytes, FromZeros as _, Immutable, IntoBytes, KnownLayout};

/// The control device, and its number.
const CONTROL: &str = "/dev/mapper/control";
const CONTROL_NUMBER: (u32, u32) = (10, 236);

/// A file with another random UUID for each reader.
const UUID: &str = "/proc/sys/kernel/random/uuid";

/// `DM_TABLE_STATUS` (`include/uapi/linux/dm-ioctl.h`).
const TABLE_STATUS: Opcode = opcode::read_write::<Header>(0xfd, 12);
/// The version of the interface that has everything used here.
const VERSION: [u32; 3] = [4, 0, 0];
/// `DM_STATUS_TABLE_FLAG`: the parameters of the targets, and not their states.
const TABLE: u32 = 1 << 4;
/// `DM_BUFFER_FULL_FLAG`: the answer is cut.
const CUT: u32 = 1 << 8;
/// `DM_NOFLUSH_FLAG`: a question writes nothing.
const NO_FLUSH: u32 = 1 << 11;
/// Bytes of an answer. The parameters of a verity target have less than a tenth of them.
const ANSWER: usize = 8 << 10;

/// `struct dm_ioctl`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Header {
    version: [u32; 3],
    data_size: u32,
    data_start: u32,
    target_count: u32,
    open_count: i32,
    flags: u32,
    event_nr: u32,
    padding: u32,
    dev: u64,
    name: [u8; 128],
    uuid: [u8; 129],
    data: [u8; 7],
}

/// `struct dm_target_spec`.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Target {
    sector_start: u64,
    length: u64,
    status: i32,
    next: u32,
    kind: [u8; 16],
}

/// A question, and the answer in its place.
#[derive(Debug, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Request {
    header: Header,
    answer: [u8; ANSWER],
}

/// The number of a device: major and minor.
pub(crate) type DeviceNumber = (u32, u32);

/// The parameters of verity devices, as they were when the control device was opened.
#[derive(Debug)]
pub(crate) struct VerityDevices {
    control: OwnedFd,
    /// The name of these answers.
    name: String,
    parameters: BTreeMap<DeviceNumber, String>,
}

impl VerityDevices {
    /// Asks for these devices. `None` without any verity device among them, or if this process may not ask.
    pub(super) fn ask(root: &Root, devices: impl IntoIterator<Item = DeviceNumber>) -> Option<Self> {
        let mut devices = devices.into_iter().peekable();
        devices.peek()?;
        let control = open_control(root)
            .inspect_err(|error| tracing::debug!(%error, "Cannot open {CONTROL}: dm-verity seals nothing."))
            .ok()?;
        let parameters = devices.filter_map(|device| match verity_parameters(control.as_fd(), device) {
            Ok(parameters) => Some((device, parameters?)),
            Err(error) => {
                tracing::debug!(%error, ?device, "Cannot read the table of a device: dm-verity seals nothing on it.");
                None
            }
        });
        let parameters: BTreeMap<DeviceNumber, String> = parameters.collect();
        let name = fs::read_to_string(UUID).ok()?.trim().to_owned();
        (!parameters.is_empty()).then_some(Self { control, name, parameters })
    }

    /// The devices that another process asked for: `MAJOR:MINOR NAME PARAMETERS` each, with its descriptor of the control device.
    pub(crate) fn handed_over(control: OwnedFd, lines: &[String]) -> Option<Self> {
        let name = lines.first()?.split(' ').nth(1)?;
        let parsed = |line: &String| {
            let (device, rest) = line.split_once(' ')?;
            let (of, parameters) = rest.split_once(' ')?;
            let (major, minor) = device.split_once(':')?;
            let is_named = of == name;
            is_named.then_some(((major.parse().ok()?, minor.parse().ok()?), parameters.to_owned()))
        };
        let parameters: BTreeMap<DeviceNumber, String> = lines.iter().filter_map(parsed).collect();
        let is_usable = !parameters.is_empty() && is_control(control.as_fd());
        is_usable.then_some(Self { control, name: name.to_owned(), parameters })
    }

    /// The lines for [`Self::handed_over`].
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> {
        let name = &self.name;
        self.parameters
            .iter()
            .map(move |((major, minor), parameters)| format!("{major}:{minor} {name} {parameters}"))
    }

    /// The descriptor of the control device, for [`Self::handed_over`]. It shares the events that were seen.
    pub(crate) fn control(&self) -> io::Result<OwnedFd> {
        self.control.try_clone()
    }

    /// The name of these answers, which no other ones have.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// What the kernel proves of a device; `None` if nothing, or if a table may have been replaced.
    pub(super) fn device(&self, device: DeviceNumber) -> Option<VerityDevice> {
        let parameters = self.parameters.get(&device)?;
        VerityDevice::of_parameters(parameters).filter(|_| self.are_current())
    }

    /// Whether no event of a mapped device came since the control device was opened. A kernel that does not report them (before 4.14) reports
    /// one at once.
    pub(super) fn are_current(&self) -> bool {
        let mut waits = [PollFd::new(self.control.as_fd(), PollFlags::POLLIN)];
        matches!(poll(&mut waits, PollTimeout::ZERO), Ok(0))
    }
}

/// Opens the control device, and no other one that is in its place.
fn open_control(root: &Root) -> Result<OwnedFd, Errno> {
    let handle = root.open_at(Path::new(CONTROL), HANDLE | OFlag::O_NOFOLLOW)?;
    if !is_control(handle.as_fd()) {
        return Err(Errno::ENODEV);
    }
    let path = format!("/proc/self/fd/{}", handle.as_raw_fd());
    open(path.as_str(), OFlag::O_RDONLY | OFlag::O_CLOEXEC | OFlag::O_NONBLOCK, Mode::empty())
}

fn is_control(handle: BorrowedFd<'_>) -> bool {
    let (major, minor) = CONTROL_NUMBER;
    fstat(handle).is_ok_and(|stat| {
        let kind = SFlag::from_bits_truncate(stat.st_mode as mode_t & SFlag::S_IFMT.bits());
        kind == SFlag::S_IFCHR && stat.st_rdev == makedev(major, minor)
    })
}

/// The parameters of a device with one target, which is of dm-verity; `None` for another device.
fn verity_parameters(control: BorrowedFd<'_>, (major, minor): DeviceNumber) -> Result<Option<String>, Errno> {
    let mut request = Request::new_zeroed();
    request.header.version = VERSION;
    request.header.data_size = u32::try_from(size_of::<Request>()).unwrap_or(u32::MAX);
    request.header.data_start = u32::try_from(size_of::<Header>()).unwrap_or(u32::MAX);
    request.header.flags = TABLE | NO_FLUSH;
    // `huge_encode_dev()`.
    request.header.dev = u64::from((minor & 0xff) | (major << 8) | ((minor & !0xff) << 12));
    table_status(control, &mut request)?;
    if request.header.target_count != 1 || request.header.flags & CUT != 0 {
        return Ok(None);
    }
    let Ok((target, parameters)) = Target::read_from_prefix(&request.answer) else { return Ok(None) };
    let text = |bytes: &[u8]| {
        let bytes = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).into_owned()
    };
    let is_verity = text(&target.kind) == VERITY_TARGET && target.sector_start == 0;
    Ok(is_verity.then(|| text(parameters)))
}

#[expect(unsafe_code, reason = "no crate has this call without bindings to a C library")]
fn table_status(control: BorrowedFd<'_>, request: &mut Request) -> Result<(), Errno> {
    // SAFETY: the kernel reads and writes at most `data_size` bytes of the request, which is its size, and any bytes are a valid request.
    let asked = unsafe { ioctl(control, Updater::<TABLE_STATUS, Request>::new(request)) };
    asked.map_err(|errno| Errno::from_raw(errno.raw_os_error()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;

    #[test]
    fn the_layout_is_that_of_the_kernel() {
        assert_eq!((size_of::<Header>(), size_of::<Target>()), (312, 40));
        assert_eq!(TABLE_STATUS, 0xc138_fd0c);
    }

    #[test]
    fn only_the_control_device_hands_tables_over() {
        let lines = ["253:0 name 1 8:16 8:16 4096 4096 1 1 sha256 00 -".to_owned()];
        let file = File::open("/dev/null").unwrap();
        assert!(VerityDevices::handed_over(file.into(), &lines).is_none());
    }
}
