//! The `[Install]` section of a unit file.

/// What the `[Install]` sections of a unit and its drop-ins say.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Install {
    /// Units that it is to be linked to: `WantedBy=`, `RequiredBy=`, `UpheldBy=`.
    pub wanted_by: Vec<String>,
    /// Its other names.
    pub aliases: Vec<String>,
    /// Units that are enabled with it.
    pub also: Vec<String>,
    /// Of a template: the instance that is enabled where none is named.
    pub default_instance: Option<String>,
}

impl Install {
    /// Adds what an `[Install]` section of the text says. Unknown keys and broken lines are passed over, as
    /// systemd does.
    pub fn add(&mut self, text: &str) {
        let joined = text.replace("\\\n", " ");
        let mut within = false;
        for line in joined.lines().map(str::trim) {
            if line.is_empty() || line.starts_with(['#', ';']) {
                continue;
            }
            if line.starts_with('[') {
                within = line == "[Install]";
                continue;
            }
            let (true, Some((key, value))) = (within, line.split_once('=')) else { continue };
            let list = match key.trim() {
                "WantedBy" | "RequiredBy" | "UpheldBy" => &mut self.wanted_by,
                "Alias" => &mut self.aliases,
                "Also" => &mut self.also,
                "DefaultInstance" => {
                    self.default_instance = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
                    continue;
                }
                _ => continue,
            };
            if value.trim().is_empty() {
                list.clear();
            }
            list.extend(value.split_whitespace().map(str::to_owned));
        }
    }
}
