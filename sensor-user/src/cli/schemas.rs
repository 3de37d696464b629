//! The JSON Schemas of what commands print and the daemon writes, made from the types.
//!
//! In: the types. Out: schemas, each with the name of its file in `docs/schemas`. `cargo xtask generate` writes them.

use super::image::{ImageDiffReport, ImageListReport, ImageShowReport, ImageVerifyReport, IndexedReport};
use super::quarantine::QuarantineReport;
use crate::{
    apply::{ApplyReport, HistoryReport, PlanReport, RepairReport},
    diagnosis::Diagnosis,
    inspection::{CheckReport, ExplainReport},
    report::forensic::{LogReport, WhoReport},
};
use schemars::{JsonSchema, Schema, generate::SchemaSettings};
use sensor_model::{chain, image::Baseline, socket, status};
use serde_json::Value;

/// Every schema, with its name.
pub fn all() -> Vec<(&'static str, Value)> {
    vec![
        of::<ApplyReport>("apply", "What `holdfast apply -o json` and `holdfast rollback -o json` print."),
        of::<Baseline>("baseline", "What `holdfast baseline` prints."),
        of::<CheckReport>("check", "What `holdfast check -o json` prints."),
        of::<Diagnosis>("doctor", "What `holdfast doctor -o json` prints."),
        of::<ExplainReport>("explain", "What `holdfast explain -o json` prints."),
        of::<chain::LogEntry>(
            "forensic-record",
            "One line of forensic.jsonl, in canonical JSON (RFC 8785, integers in full), at most 16 KiB.",
        ),
        of::<HistoryReport>("history", "What `holdfast history -o json` prints."),
        of::<ImageDiffReport>("image-diff", "What `holdfast image diff -o json` prints."),
        of::<IndexedReport>("image-index", "What `holdfast image index -o json` prints."),
        of::<ImageListReport>("image-list", "What `holdfast image list -o json` prints."),
        of::<ImageShowReport>("image-show", "What `holdfast image show -o json` prints."),
        of::<ImageVerifyReport>("image-verify", "What `holdfast image verify -o json` prints."),
        of::<socket::LogCheckpoint>(
            "log-checkpoint",
            "The answer of the reporter's socket to `GET /v1/log`.",
        ),
        of::<LogReport<'static>>("log-verify", "What `holdfast log verify -o json` prints."),
        of::<PlanReport>("plan", "What `holdfast plan -o json` prints."),
        of::<QuarantineReport>("quarantine", "What `holdfast quarantine list -o json` prints."),
        of::<RepairReport>("repair", "What `holdfast repair -o json` prints."),
        of::<socket::SocketError>(
            "socket-error",
            "The answer of the reporter's socket to a request that it refuses.",
        ),
        of::<status::StatusReport>("status", "What `holdfast status -o json` prints."),
        of::<status::NodeStatus>("status-file", "What the daemon keeps in status.json."),
        of::<WhoReport>("who", "What `holdfast who -o json` prints."),
    ]
}

fn of<T: JsonSchema>(name: &'static str, about: &str) -> (&'static str, Value) {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schema: Schema = settings.into_generator().into_root_schema_for::<T>();
    let title = schema.pointer("/properties/schema/const").cloned().unwrap_or_default();
    let id = format!("https://holdfast.dev/schema/{name}.schema.json");
    let about = format!("{about} Fields may be added; none is renamed or removed.");
    schema.insert("$id".to_owned(), id.into());
    schema.insert("title".to_owned(), title);
    schema.insert("description".to_owned(), about.into());
    let mut schema = schema.to_value();
    join_lines(&mut schema);
    schema.sort_all_objects();
    (name, schema)
}

/// Makes each description one line: its line breaks are those of the source.
fn join_lines(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if let Some(Value::String(text)) = map.get_mut("description") {
                *text = text.replace('\n', " ");
            }
            map.values_mut().for_each(join_lines);
        }
        Value::Array(list) => list.iter_mut().for_each(join_lines),
        _ => {}
    }
}
