//! The `[Install]` section of a unit file.
//!
//! In: the text of a unit file or drop-in. Out: the links and other units that enabling the unit involves.

/// The `[Install]` sections of a unit and its drop-ins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Install {
    /// Directories for links that enable the unit, from `WantedBy=`, `RequiredBy=` and `UpheldBy=`: `multi-user.target.wants`.
    pub directories: Vec<String>,
    /// `Alias=`: other names of the unit.
    pub aliases: Vec<String>,
    /// `Also=`: units that are enabled with it.
    pub also: Vec<String>,
    /// `DefaultInstance=`: the instance of a template that is enabled if none is named.
    pub default_instance: Option<String>,
}

impl Install {
    /// Adds the `[Install]` sections of a text. As in systemd, unknown keys and invalid lines are ignored.
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
            match key.trim() {
                "WantedBy" => self.link("wants", value),
                "RequiredBy" => self.link("requires", value),
                "UpheldBy" => self.link("upholds", value),
                "Alias" => assign(&mut self.aliases, value),
                "Also" => assign(&mut self.also, value),
                "DefaultInstance" => {
                    self.default_instance = Some(value.trim().to_owned()).filter(|value| !value.is_empty());
                }
                _ => {}
            }
        }
    }

    /// An empty assignment clears earlier values of the same key.
    fn link(&mut self, ending: &str, value: &str) {
        let ending = format!(".{ending}");
        if value.trim().is_empty() {
            self.directories.retain(|directory| !directory.ends_with(&ending));
        }
        self.directories.extend(value.split_whitespace().map(|unit| format!("{unit}{ending}")));
    }
}

fn assign(list: &mut Vec<String>, value: &str) {
    if value.trim().is_empty() {
        list.clear();
    }
    list.extend(value.split_whitespace().map(str::to_owned));
}
