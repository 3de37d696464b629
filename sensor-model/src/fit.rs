//! Cuts a record to the size limit of a log entry.
//!
//! In: a record. Out: a record that fits. Free text (arguments, names, texts, a diff) is cut, the least important first, and
//! `detail.cut` is set. A user chooses the length of a command line, and a control character takes six bytes in JSON.

#[cfg(test)]
mod tests;

use crate::record::{Actor, Record};
use serde_json::Value;

/// Most bytes of an entry, including the line ending.
pub const LONGEST_ENTRY: usize = 16 << 10;

/// Bytes of a line besides its record: number, both hashes, line ending.
pub const CHAIN: usize = 256;

/// The mark at the end of a cut text.
const MARK: char = '\u{2026}';

/// Least bytes of a cut diff; a shorter one would be useless.
const LEAST_DIFF: usize = 1024;

/// Limits for the parts of a record, in bytes of JSON.
struct SizeLimits {
    /// For the arguments of the actor.
    own: usize,
    /// For the arguments of each ancestor and other actor.
    others: usize,
    /// For each other text. Digests and ids always fit.
    text: usize,
    /// Most items of a list.
    items: usize,
}

/// The limits in the order in which they are tried, until the record fits.
const STEPS: [SizeLimits; 5] = [
    SizeLimits { own: 1024, others: 256, text: usize::MAX, items: usize::MAX },
    SizeLimits { own: 1024, others: 128, text: 1024, items: 65 },
    SizeLimits { own: 512, others: 64, text: 256, items: 32 },
    SizeLimits { own: 256, others: 64, text: 128, items: 8 },
    SizeLimits { own: 64, others: 32, text: 64, items: 3 },
];

/// Bytes of a record as JSON.
pub fn length(record: &Record) -> usize {
    // The writer replaces a record that JSON cannot represent by one that reports it.
    serde_json::to_string(record).map_or(0, |json| json.len())
}

/// Cuts a record to the limit. Kind, times and path stay; only a path that is longer than an entry is cut, too.
pub fn fitted(record: &Record) -> Record {
    let room = LONGEST_ENTRY - CHAIN;
    let mut cut = record.clone();
    cut.detail.insert("cut".to_owned(), true.into());
    for step in STEPS {
        step.shorten(&mut cut);
        if fits(&mut cut, room) {
            return cut;
        }
    }
    for text in [&mut cut.path, &mut cut.source, &mut cut.operation].into_iter().flatten() {
        *text = within(text, LONGEST_ENTRY / 4);
    }
    cut.actors.clear();
    cut.differences.clear();
    (cut.before, cut.after, cut.diff) = (None, None, None);
    if let Some(actor) = &mut cut.actor {
        actor.ancestors.clear();
    }
    cut.detail.retain(|key, _| key == "cut");
    cut
}

/// Whether a record fits, if necessary with a cut diff.
fn fits(record: &mut Record, room: usize) -> bool {
    if length(record) <= room {
        return true;
    }
    let Some(diff) = record.diff.take() else { return false };
    // 64 bytes for the field's name and the line with the number of cut lines.
    let rest = room.saturating_sub(length(record) + 64);
    let fits = rest >= LEAST_DIFF;
    record.diff = Some(if fits { first_lines(&diff, rest) } else { diff });
    fits
}

/// The first lines of a diff, and a line with the number of cut lines.
fn first_lines(diff: &str, room: usize) -> String {
    let mut left = room;
    let mut shown: String = diff
        .split_inclusive('\n')
        .take_while(|line| {
            let length = line.chars().map(escaped).sum::<usize>();
            let fits = length <= left;
            left = left.saturating_sub(length);
            fits
        })
        .collect();
    let more = diff[shown.len()..].lines().count();
    shown.extend(["\\ and ", &more.to_string(), " lines more\n"]);
    shown
}

impl SizeLimits {
    fn shorten(&self, record: &mut Record) {
        if let Some(actor) = &mut record.actor {
            self.shorten_actor(actor, self.own);
        }
        for actor in &mut record.actors {
            self.shorten_actor(actor, self.others);
        }
        record.actors.truncate(self.items);
        record.differences.truncate(self.items);
        for difference in &mut record.differences {
            for text in [&mut difference.expected, &mut difference.found, &mut difference.text] {
                self.shorten_text(text);
            }
        }
        for value in record.before.iter_mut().chain(&mut record.after) {
            self.shorten_fields(value.as_object_mut().into_iter().flat_map(serde_json::Map::values_mut));
        }
        self.shorten_fields(record.detail.values_mut());
    }

    fn shorten_actor(&self, actor: &mut Actor, arguments: usize) {
        let mut left = arguments;
        let mut argv = Vec::new();
        for argument in actor.argv.drain(..) {
            let cut = within(&argument, left);
            // Three bytes for the quotation marks and the comma.
            let rest = left.checked_sub(cut.chars().map(escaped).sum::<usize>() + 3);
            let is_whole = cut == argument;
            argv.push(cut);
            let Some(rest) = rest.filter(|_| is_whole) else {
                actor.argv_cut = true;
                break;
            };
            left = rest;
        }
        actor.argv = argv;
        let texts = [
            &mut actor.exe,
            &mut actor.login_user,
            &mut actor.tty,
            &mut actor.unit,
            &mut actor.slice,
            &mut actor.container_id,
            &mut actor.pod_uid,
        ];
        for text in texts.into_iter().flatten() {
            self.shorten_text(text);
        }
        actor.ancestors.truncate(self.items);
        for ancestor in &mut actor.ancestors {
            self.shorten_actor(ancestor, self.others);
        }
    }

    /// Shortens the values of an object. Holdfast chooses the names of its fields, so these are short.
    fn shorten_fields<'a>(&self, fields: impl Iterator<Item = &'a mut Value>) {
        for field in fields {
            self.shorten_value(field);
        }
    }

    fn shorten_value(&self, value: &mut Value) {
        match value {
            Value::String(text) => self.shorten_text(text),
            Value::Array(items) => {
                items.truncate(self.items);
                self.shorten_fields(items.iter_mut());
            }
            Value::Object(map) => {
                let more: Vec<String> = map.keys().skip(self.items).cloned().collect();
                map.retain(|key, _| !more.contains(key));
                self.shorten_fields(map.values_mut());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }

    fn shorten_text(&self, text: &mut String) {
        if text.len() > self.text || text.chars().map(escaped).sum::<usize>() > self.text {
            *text = within(text, self.text);
        }
    }
}

/// The beginning of a text within a number of bytes in JSON, with the mark if the text is cut.
fn within(text: &str, room: usize) -> String {
    let mut left = room;
    for (at, c) in text.char_indices() {
        let Some(rest) = left.checked_sub(escaped(c)) else {
            let mut cut = text[..at].to_owned();
            cut.push(MARK);
            return cut;
        };
        left = rest;
    }
    text.to_owned()
}

/// Bytes of a character in JSON.
fn escaped(c: char) -> usize {
    match c {
        '"' | '\\' | '\n' | '\r' | '\t' | '\u{8}' | '\u{c}' => 2,
        '\0'..='\u{1f}' => 6,
        c => c.len_utf8(),
    }
}
