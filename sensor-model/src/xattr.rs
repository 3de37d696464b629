//! Extended attributes in readable form.
//!
//! In: an attribute's name and value. Out: the description in observations, so that a report can name the users of an access
//! control list. The description of an unknown value is its digest. Every length in a value is checked before use.

use sha2::{Digest as _, Sha256};

/// Description of an access control list that grants exactly what the permission bits grant.
pub const MINIMAL: &str = "minimal";

/// Attributes that are never a difference. The label is compared separately. The kernel writes the IMA and EVM attributes after
/// each change of the content.
const IGNORED: [&str; 3] = ["security.selinux", "security.ima", "security.evm"];

/// The attribute with the capabilities that a program gets.
pub const CAPABILITY: &str = "security.capability";
/// The description, in an entry of an image, of a value that the image does not know. [`describe`] never gives it.
pub const UNKNOWN: &str = "unknown";

/// The description of a value that was not read, because the values before it have more than a MiB. The owner of a file chooses them.
pub const UNREAD: &str = "not read: the attributes have more than a MiB";
/// The name and the description that take the place of attributes whose names have more than 64 KiB. The kernel lists none of them.
pub const UNLISTED: (&str, &str) = ("(all)", "not listed: their names have more than 64 KiB");

/// Whether an undeclared attribute is no difference. `description` is that of [`describe`].
pub fn is_ignored(name: &str, description: &str) -> bool {
    // Reading `trusted.*` needs CAP_SYS_ADMIN, and the verdict must not depend on the reader. These attributes grant nothing;
    // most are data of overlayfs.
    IGNORED.contains(&name) || name.starts_with("trusted.") || description == MINIMAL
}

/// A readable form of an attribute's value: the entries of an access control list, or the capabilities of a file. It is
/// [`MINIMAL`] for a list that grants nothing more than the mode, and `sha256:<hex>` for any other value.
pub fn describe(name: &str, value: &[u8]) -> String {
    let understood = match name {
        "system.posix_acl_access" | "system.posix_acl_default" => posix_acl(value, name),
        "system.nfs4_acl" => nfs4_is_minimal(value).and_then(|minimal| minimal.then(|| MINIMAL.to_owned())),
        CAPABILITY => capabilities(value),
        _ => None,
    };
    understood.unwrap_or_else(|| format!("sha256:{}", hex::encode(Sha256::digest(value))))
}

/// `user::rw-,user:1000:rw-,group::r--,mask::rw-,other::r--`; `None` when it is not such a list.
fn posix_acl(value: &[u8], name: &str) -> Option<String> {
    const VERSION: u32 = 2;
    let (version, entries) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != VERSION || entries.len() % 8 != 0 {
        return None;
    }
    let mut minimal = true;
    let mut parts = Vec::new();
    for entry in entries.chunks_exact(8) {
        let tag = u16::from_le_bytes(entry[..2].try_into().ok()?);
        let bits = u16::from_le_bytes(entry[2..4].try_into().ok()?);
        let id = u32::from_le_bytes(entry[4..].try_into().ok()?);
        let who = match tag {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".to_owned(),
            0x20 => "other:".to_owned(),
            _ => return None,
        };
        minimal &= matches!(tag, 0x01 | 0x04 | 0x20);
        let letters: String = [(4, 'r'), (2, 'w'), (1, 'x')]
            .iter()
            .map(|(bit, c)| if bits & bit == 0 { '-' } else { *c })
            .collect();
        parts.push(format!("{who}:{letters}"));
    }
    // A default list is never minimal: it sets the access of objects that are created in the directory.
    if minimal && name == "system.posix_acl_access" {
        return Some(MINIMAL.to_owned());
    }
    Some(parts.join(","))
}

/// Whether an NFSv4 list names only owner, group and everyone; `None` when it is not such a list.
fn nfs4_is_minimal(value: &[u8]) -> Option<bool> {
    let (count, mut rest) = value.split_first_chunk::<4>()?;
    for _ in 0..u32::from_be_bytes(*count) {
        // Type, flags, mask, length of the name, the name padded to four bytes.
        let (header, tail) = rest.split_first_chunk::<16>()?;
        let length = usize::try_from(u32::from_be_bytes(header[12..].try_into().ok()?)).ok()?;
        let who = tail.get(..length)?;
        if !matches!(who, b"OWNER@" | b"GROUP@" | b"EVERYONE@") {
            return Some(false);
        }
        rest = tail.get(length.next_multiple_of(4)..)?;
    }
    rest.is_empty().then_some(true)
}

/// `cap_net_raw+ep`, or `=` for no capability; `None` when the value is of an unknown revision.
fn capabilities(value: &[u8]) -> Option<String> {
    const REVISION_MASK: u32 = 0xff00_0000;
    let word = |index: usize| value.get(index * 4..index * 4 + 4)?.try_into().ok().map(u32::from_le_bytes);
    let magic = word(0)?;
    let (length, root) = match magic & REVISION_MASK {
        0x0200_0000 => (20, None),
        0x0300_0000 => (24, Some(word(5)?)),
        _ => return None,
    };
    if value.len() != length {
        return None;
    }
    let set = |low: usize, high: usize| Some(u64::from(word(low)?) | (u64::from(word(high)?) << 32));
    let mut parts = granted(set(1, 3)?, set(2, 4)?, magic & 1 == 1);
    if let Some(root) = root {
        parts.push(format!("rootid={root}"));
    }
    Some(parts.join(" "))
}

/// The words for sets of capabilities. The effective bit of a file belongs to its permitted set, or else to its inheritable one.
fn granted(permitted: u64, inheritable: u64, is_effective: bool) -> Vec<String> {
    let mut parts = Vec::new();
    let inherited = if is_effective && permitted == 0 { "ei" } else { "i" };
    for (bits, flags) in [(permitted, if is_effective { "ep" } else { "p" }), (inheritable, inherited)] {
        let names: Vec<String> = (0..64).filter(|bit| bits & (1 << bit) != 0).map(capability_name).collect();
        if !names.is_empty() {
            parts.push(format!("{}+{flags}", names.join(",")));
        }
    }
    if parts.is_empty() {
        parts.push("=".to_owned());
    }
    parts
}

/// The description of capabilities in the form of `setcap` (`cap_from_text(3)`), as [`describe`] has it: `cap_net_raw=ep` is `cap_net_raw+ep`.
/// `None` if it is not such a text.
pub fn described_capabilities(text: &str) -> Option<String> {
    // Effective, inheritable, permitted.
    let mut sets = [0_u64; 3];
    for clause in text.split_ascii_whitespace() {
        let operators = ['=', '+', '-'];
        let start = clause.find(operators)?;
        let (names, mut actions) = clause.split_at(start);
        let bits = match names {
            "" => ALL,
            names => names.split(',').try_fold(0, |bits, name| Some(bits | capability_bits(name)?))?,
        };
        while let Some(operator) = actions.chars().next() {
            let rest = &actions[1..];
            let (flags, next) = rest.split_at(rest.find(operators).unwrap_or(rest.len()));
            if operator == '=' {
                sets = sets.map(|set| set & !bits);
            } else if names.is_empty() || flags.is_empty() {
                return None;
            }
            for flag in flags.chars() {
                let set = &mut sets["eip".find(flag)?];
                if operator == '-' { *set &= !bits } else { *set |= bits }
            }
            actions = next;
        }
    }
    let [effective, inheritable, permitted] = sets;
    Some(granted(permitted, inheritable, effective != 0).join(" "))
}

/// The names of capabilities by their numbers (include/uapi/linux/capability.h), without their common beginning.
const NAMES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// Every capability that has a name.
const ALL: u64 = (1 << NAMES.len()) - 1;

/// The bits of a name, of a number, or of the word for all of them.
fn capability_bits(name: &str) -> Option<u64> {
    let name = name.to_ascii_lowercase();
    if name == "all" {
        return Some(ALL);
    }
    let of_name = name.strip_prefix("cap_").and_then(|name| NAMES.iter().position(|known| *known == name));
    let number = of_name.or_else(|| name.parse().ok()).filter(|number| *number < 64)?;
    Some(1 << number)
}

fn capability_name(bit: usize) -> String {
    NAMES.get(bit).map_or_else(|| format!("cap_{bit}"), |name| format!("cap_{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut value = 2_u32.to_le_bytes().to_vec();
        for (tag, bits, id) in entries {
            value.extend(tag.to_le_bytes());
            value.extend(bits.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        value
    }

    #[test]
    fn capabilities_in_words_are_described_as_those_of_a_file() {
        for (text, described) in [
            ("cap_net_raw=ep", "cap_net_raw+ep"),
            ("cap_net_raw,cap_net_admin=p", "cap_net_admin,cap_net_raw+p"),
            ("= cap_setuid+ep", "cap_setuid+ep"),
            ("cap_setuid+p cap_setuid+e", "cap_setuid+ep"),
            ("cap_kill=eip cap_kill-i", "cap_kill+ep"),
            ("cap_kill+ip-p", "cap_kill+i"),
            ("cap_kill=ei", "cap_kill+ei"),
            ("cap_kill=i", "cap_kill+i"),
            ("63,CAP_KILL=p", "cap_kill,cap_63+p"),
            ("all=p cap_kill= all-p", "="),
            ("=", "="),
        ] {
            assert_eq!(described_capabilities(text).as_deref(), Some(described), "{text}");
        }
        let all = described_capabilities("=ep").unwrap();
        assert!(all.starts_with("cap_chown,") && all.ends_with("cap_checkpoint_restore+ep"), "{all}");
        for text in [
            "cap_net_raw",
            "cap_other=ep",
            "net_raw=ep",
            "64=p",
            "cap_net_raw=x",
            ",=p",
            "cap_net_raw é",
            "+p",
            "=p-e",
            "cap_net_raw+",
        ] {
            assert_eq!(described_capabilities(text), None, "{text}");
        }
    }

    fn nfs4(names: &[&str]) -> Vec<u8> {
        let mut value = u32::try_from(names.len()).unwrap().to_be_bytes().to_vec();
        for name in names {
            value.extend([0; 12]);
            value.extend(u32::try_from(name.len()).unwrap().to_be_bytes());
            value.extend(name.bytes());
            value.resize(value.len().next_multiple_of(4), 0);
        }
        value
    }

    #[test]
    fn values_are_described_by_what_they_grant() {
        let none = u32::MAX;
        let base = [(1, 6, none), (4, 4, none), (0x20, 4, none)];
        let named = [(1, 6, none), (2, 7, 1000), (4, 4, none), (0x10, 7, none), (0x20, 0, none)];
        let capability = hex::decode("0100000200200000000000000000000000000000").unwrap();
        let digest = |value: &[u8]| format!("sha256:{}", hex::encode(Sha256::digest(value)));
        for (name, value, expected, why) in [
            ("system.posix_acl_access", acl(&base), MINIMAL.to_owned(), "grants what the mode grants"),
            (
                "system.posix_acl_access",
                acl(&named),
                "user::rw-,user:1000:rwx,group::r--,mask::rwx,other::---".to_owned(),
                "grants access to one user",
            ),
            (
                "system.posix_acl_default",
                acl(&base),
                "user::rw-,group::r--,other::r--".to_owned(),
                "a default list applies to new objects",
            ),
            ("system.posix_acl_access", vec![2, 0, 0, 0, 1], digest(&[2, 0, 0, 0, 1]), "cut short"),
            ("system.nfs4_acl", nfs4(&["OWNER@", "GROUP@", "EVERYONE@"]), MINIMAL.to_owned(), "no names"),
            ("system.nfs4_acl", nfs4(&["eve@x"]), digest(&nfs4(&["eve@x"])), "a name"),
            ("security.capability", capability, "cap_net_raw+ep".to_owned(), "the capability of ping"),
            ("user.x", b"v".to_vec(), digest(b"v"), "unknown"),
        ] {
            assert_eq!(describe(name, &value), expected, "{name}: {why}");
        }
    }

    #[test]
    fn only_book_keeping_attributes_are_ignored() {
        for (name, description, ignored) in [
            ("security.selinux", "sha256:00", true),
            ("security.ima", "sha256:00", true),
            ("security.evm", "sha256:00", true),
            ("trusted.overlay.origin", "sha256:00", true),
            ("system.posix_acl_access", MINIMAL, true),
            ("system.posix_acl_access", "user::rw-,user:1000:rwx", false),
            ("security.capability", "cap_net_raw+ep", false),
            ("user.note", "sha256:00", false),
            ("trusted.other", "sha256:00", true),
            ("security.other", "sha256:00", false),
        ] {
            assert_eq!(is_ignored(name, description), ignored, "{name}");
        }
    }
}
