//! Lines of a passwd or group file.
//!
//! In: the bytes of a file. Out: names by id and ids by name.

use std::collections::HashMap;

/// Names and ids of users, or of groups.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Accounts {
    /// Id to name.
    pub names: HashMap<u32, String>,
    /// Name to id.
    pub ids: HashMap<String, u32>,
}

impl Accounts {
    /// Adds the lines of a passwd or group file: name, password, id. As with NSS the first entry of a name or id applies, so the
    /// caller adds the file of the highest priority first. Lines of another form are ignored.
    pub fn add(&mut self, text: &[u8]) {
        for line in text.split(|byte| *byte == b'\n') {
            let mut fields = line.split(|byte| *byte == b':');
            let (Some(name), Some(_), Some(id)) = (fields.next(), fields.next(), fields.next()) else {
                continue;
            };
            let (Ok(name), Ok(id)) = (std::str::from_utf8(name), std::str::from_utf8(id)) else { continue };
            let Ok(id) = id.parse::<u32>() else { continue };
            if name.is_empty() || name.starts_with(['#', '+', '-']) {
                continue;
            }
            self.names.entry(id).or_insert_with(|| name.to_owned());
            self.ids.entry(name.to_owned()).or_insert(id);
        }
    }
}
