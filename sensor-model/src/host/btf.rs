//! A small reader of the kernel's BTF: struct members and function parameters by name.
//!
//! In: bytes. Out: offsets and indices, and a small blob for a loader that only looks up names. It stores one offset for each type and
//! borrows everything else, so reading a BTF of 6 MB takes about one more megabyte.

use std::collections::{BTreeSet, HashMap};
use thiserror::Error;

/// Why a name could not be resolved.
#[derive(Debug, Clone, Error, PartialEq, Eq)]
pub enum BtfError {
    /// The bytes are not BTF, or end too early.
    #[error("kernel BTF: {0}")]
    Malformed(&'static str),
    /// The kernel has no such structure.
    #[error("kernel BTF has no struct `{0}`")]
    NoStruct(String),
    /// The structure has no such member.
    #[error("kernel BTF: struct `{structure}` has no member `{member}`")]
    NoMember {
        /// Structure searched.
        structure: String,
        /// Member that is not there.
        member: String,
    },
    /// The member is of another type than the programs load.
    #[error("kernel BTF: `{structure}.{member}` is {found}, not {expected}")]
    WrongType {
        /// Structure searched.
        structure: String,
        /// Member found.
        member: String,
        /// The type that the programs load.
        expected: Field,
        /// The type that the kernel has.
        found: Field,
    },
    /// The kernel has no such function.
    #[error("kernel BTF has no function `{0}`")]
    NoFunction(String),
    /// No enumeration of that name with that value.
    #[error("kernel BTF: no value `{value}` of `enum {name}`")]
    NoValue {
        /// Enumeration searched.
        name: String,
        /// Value that is not there.
        value: String,
    },
    /// The function has no such parameter.
    #[error("kernel BTF: function `{function}` has no parameter `{parameter}`")]
    NoParameter {
        /// Function searched.
        function: String,
        /// Parameter that is not there.
        parameter: String,
    },
}

/// The type of a member, as far as a load depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// A pointer.
    Pointer,
    /// An integer, enum or one-integer struct (`kuid_t`) of so many bytes.
    Word(u32),
    /// A struct, union or array inside the struct.
    Nested,
}

impl std::fmt::Display for Field {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pointer => write!(to, "a pointer"),
            Self::Word(bytes) => write!(to, "a word of {bytes} bytes"),
            Self::Nested => write!(to, "a nested structure"),
        }
    }
}

// Kinds of include/uapi/linux/btf.h.
const INT: u32 = 1;
const PTR: u32 = 2;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FORWARD: u32 = 7;
const TYPEDEF: u32 = 8;
const VOLATILE: u32 = 9;
const CONST: u32 = 10;
const RESTRICT: u32 = 11;
const FUNC: u32 = 12;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const DECL_TAG: u32 = 17;
const TYPE_TAG: u32 = 18;
const ENUM64: u32 = 19;

/// Most levels of anonymous structs that a search enters; the kernel has three.
const DEPTH: u32 = 8;

/// Most members that a search visits. The kernel's largest structure has some three hundred, including nested ones.
const MEMBERS: usize = 1 << 14;

/// A parsed BTF blob.
#[derive(Debug)]
pub struct Btf<'a> {
    types: &'a [u8],
    strings: &'a [u8],
    /// Where each type's header starts in `types`; index is the type id less one.
    offsets: Vec<u32>,
    structs: HashMap<&'a [u8], u32>,
    functions: HashMap<&'a [u8], u32>,
    enums: HashMap<&'a [u8], u32>,
}

struct Header {
    kind: u32,
    length: u32,
    flag: bool,
    name: u32,
    /// Size of the type, or the id of the type it refers to.
    value: u32,
    body: usize,
}

fn word(bytes: &[u8], at: usize) -> Result<u32, BtfError> {
    bytes
        .get(at..at + 4)
        .and_then(|slice| slice.try_into().ok())
        .map(u32::from_le_bytes)
        .ok_or(BtfError::Malformed("ends too early"))
}

/// The two sections of a blob: types and strings.
fn sections(bytes: &[u8]) -> Result<(&[u8], &[u8]), BtfError> {
    if bytes.get(..2) != Some(&[0x9f, 0xeb]) {
        return Err(BtfError::Malformed("magic number is not 0xeB9F in little-endian order"));
    }
    let header = word(bytes, 4)? as usize;
    let part = |offset: usize, length: usize| {
        let (start, length) = (word(bytes, offset)? as usize + header, word(bytes, length)? as usize);
        bytes.get(start..start + length).ok_or(BtfError::Malformed("section ends past the blob"))
    };
    Ok((part(8, 12)?, part(16, 20)?))
}

/// The types of the kernel and of one of its modules as one blob. In split BTF the module's type ids and string offsets continue
/// those of the kernel.
pub fn join(kernel: &[u8], module: &[u8]) -> Result<Vec<u8>, BtfError> {
    let (kernel, module) = (sections(kernel)?, sections(module)?);
    blob(&[kernel.0, module.0].concat(), &[kernel.1, module.1].concat())
}

/// A blob of these two sections.
fn blob(types: &[u8], strings: &[u8]) -> Result<Vec<u8>, BtfError> {
    const HEADER: u32 = 24;
    let length = |section: &[u8]| u32::try_from(section.len()).map_err(|_| BtfError::Malformed("too large"));
    let mut blob = vec![0x9f, 0xeb, 1, 0];
    let numbers = [HEADER, 0, length(types)?, length(types)?, length(strings)?];
    blob.extend(numbers.into_iter().flat_map(u32::to_le_bytes));
    blob.extend([types, strings].concat());
    Ok(blob)
}

impl<'a> Btf<'a> {
    /// Indexes a blob such as `/sys/kernel/btf/vmlinux`.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfError> {
        let (types, strings) = sections(bytes)?;
        let (structs, functions, enums) = (HashMap::new(), HashMap::new(), HashMap::new());
        let mut btf = Self { types, strings, offsets: Vec::new(), structs, functions, enums };
        let mut at = 0;
        while at < types.len() {
            let found = btf.header_at(at)?;
            btf.offsets.push(u32::try_from(at).map_err(|_| BtfError::Malformed("too large"))?);
            let id = u32::try_from(btf.offsets.len()).map_err(|_| BtfError::Malformed("too large"))?;
            match found.kind {
                STRUCT if found.name != 0 => {
                    btf.structs.entry(btf.string(found.name)).or_insert(id);
                }
                ENUM if found.name != 0 => {
                    btf.enums.entry(btf.string(found.name)).or_insert(id);
                }
                FUNC => {
                    btf.functions.entry(btf.string(found.name)).or_insert(id);
                }
                _ => {}
            }
            let each = match found.kind {
                INT | VAR | DECL_TAG => 4,
                ARRAY => 12,
                STRUCT | UNION | DATASEC | ENUM64 => 12 * found.length as usize,
                ENUM | FUNC_PROTO => 8 * found.length as usize,
                kind if kind <= ENUM64 => 0,
                _ => return Err(BtfError::Malformed("has a kind of type that is newer than this reader")),
            };
            at = found.body + each;
        }
        Ok(btf)
    }

    fn header_at(&self, at: usize) -> Result<Header, BtfError> {
        let info = word(self.types, at + 4)?;
        Ok(Header {
            kind: (info >> 24) & 0x1f,
            length: info & 0xffff,
            flag: info >> 31 != 0,
            name: word(self.types, at)?,
            value: word(self.types, at + 8)?,
            body: at + 12,
        })
    }

    fn header(&self, id: u32) -> Result<Header, BtfError> {
        let index = (id as usize).checked_sub(1).ok_or(BtfError::Malformed("refers to void"))?;
        let at = self.offsets.get(index).ok_or(BtfError::Malformed("refers to a type past its end"))?;
        self.header_at(*at as usize)
    }

    fn string(&self, at: u32) -> &'a [u8] {
        let tail = self.strings.get(at as usize..).unwrap_or_default();
        tail.split(|byte| *byte == 0).next().unwrap_or_default()
    }

    /// The type without typedefs and qualifiers.
    fn resolve(&self, mut id: u32) -> Result<Header, BtfError> {
        for _ in 0..32 {
            let header = self.header(id)?;
            match header.kind {
                TYPEDEF | VOLATILE | CONST | RESTRICT | TYPE_TAG => id = header.value,
                _ => return Ok(header),
            }
        }
        Err(BtfError::Malformed("has a loop of typedefs"))
    }

    fn field(&self, id: u32) -> Result<Field, BtfError> {
        let header = self.resolve(id)?;
        Ok(match header.kind {
            PTR => Field::Pointer,
            INT | ENUM | ENUM64 => Field::Word(header.value),
            // kuid_t and kgid_t: a struct around one integer.
            STRUCT if header.length == 1 && header.value <= 4 => Field::Word(header.value),
            _ => Field::Nested,
        })
    }

    /// Byte offset of `structure.member`, which may be in anonymous structs and unions. Checks that its type is `expected`.
    pub fn member(&self, structure: &str, member: &str, expected: Field) -> Result<u32, BtfError> {
        let id =
            self.structs.get(structure.as_bytes()).ok_or_else(|| BtfError::NoStruct(structure.to_owned()))?;
        let mut members = MEMBERS;
        let (offset, of) = self.search(*id, member.as_bytes(), 0, &mut members)?.ok_or_else(|| {
            BtfError::NoMember { structure: structure.to_owned(), member: member.to_owned() }
        })?;
        let found = self.field(of)?;
        if found != expected {
            return Err(BtfError::WrongType {
                structure: structure.to_owned(),
                member: member.to_owned(),
                expected,
                found,
            });
        }
        Ok(offset)
    }

    /// Offset and type of a member. `members` is the number of members that the search may still visit.
    fn search(
        &self,
        id: u32,
        member: &[u8],
        depth: u32,
        members: &mut usize,
    ) -> Result<Option<(u32, u32)>, BtfError> {
        let header = self.resolve(id)?;
        if depth > DEPTH || !matches!(header.kind, STRUCT | UNION) {
            return Ok(None);
        }
        for index in 0..header.length as usize {
            *members = members.checked_sub(1).ok_or(BtfError::Malformed("nests without end"))?;
            let at = header.body + 12 * index;
            let (name, of, raw) =
                (word(self.types, at)?, word(self.types, at + 4)?, word(self.types, at + 8)?);
            let bits = if header.flag { raw & 0x00ff_ffff } else { raw };
            if name == 0 {
                if let Some((offset, of)) = self.search(of, member, depth + 1, members)? {
                    let offset = offset.checked_add(bits / 8).ok_or(BtfError::Malformed("too large"))?;
                    return Ok(Some((offset, of)));
                }
            } else if self.string(name) == member {
                return Ok(Some((bits / 8, of)));
            }
        }
        Ok(None)
    }

    /// The number of a value of an enumeration.
    pub fn value(&self, name: &str, value: &str) -> Result<u32, BtfError> {
        let missing = || BtfError::NoValue { name: name.to_owned(), value: value.to_owned() };
        let header = self.header(*self.enums.get(name.as_bytes()).ok_or_else(missing)?)?;
        for index in 0..header.length as usize {
            let at = header.body + 8 * index;
            if self.string(word(self.types, at)?) == value.as_bytes() {
                return word(self.types, at + 4);
            }
        }
        Err(missing())
    }

    /// Whether the kernel has a function of that name in its BTF.
    pub fn has_function(&self, function: &str) -> bool {
        self.functions.contains_key(function.as_bytes())
    }

    /// A blob in which every type has the number that it has here, and only the functions and typedefs with these names are left. The
    /// others are forward declarations without a name. A loader that looks up the numbers of these names finds the same ones, and
    /// needs a fraction of the memory for what it reads.
    pub fn with_names_only(&self, names: &BTreeSet<String>) -> Result<Vec<u8>, BtfError> {
        let mut types = Vec::with_capacity(12 * self.offsets.len());
        // A type without a name has the empty string, which is at offset 0.
        let mut strings = vec![0];
        for at in &self.offsets {
            let found = self.header_at(*at as usize)?;
            let name = match found.kind {
                FUNC | TYPEDEF => std::str::from_utf8(self.string(found.name)).ok(),
                _ => None,
            };
            let words = match name.filter(|name| names.contains(*name)) {
                Some(name) => {
                    let place = u32::try_from(strings.len()).map_err(|_| BtfError::Malformed("too large"))?;
                    strings.extend(name.bytes().chain([0]));
                    [place, found.kind << 24 | found.length, found.value]
                }
                None => [0, FORWARD << 24, 0],
            };
            types.extend(words.into_iter().flat_map(u32::to_le_bytes));
        }
        blob(&types, &strings)
    }

    /// Index of `function`'s parameter `parameter`; since 7.0 a parameter that may be null has the
    /// suffix `__nullable`.
    pub fn parameter(&self, function: &str, parameter: &str) -> Result<u32, BtfError> {
        let id = self
            .functions
            .get(function.as_bytes())
            .ok_or_else(|| BtfError::NoFunction(function.to_owned()))?;
        let prototype = self.header(self.header(*id)?.value)?;
        for index in 0..prototype.length {
            let name = self.string(word(self.types, prototype.body + 8 * index as usize)?);
            if name == parameter.as_bytes() || name.strip_suffix(b"__nullable") == Some(parameter.as_bytes())
            {
                return Ok(index);
            }
        }
        Err(BtfError::NoParameter { function: function.to_owned(), parameter: parameter.to_owned() })
    }
}
