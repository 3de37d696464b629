//! `holdfast explain`: everything about one path.

use super::{
    describe,
    exit::{BadInput, DRIFT, FAILURE, IN_SYNC, runtime},
    log_errors,
    output::{Output, Screen, Tone, clean},
    sources::{Sources, host_path},
    who,
};
use crate::{
    image::{self, CoveredHierarchy, Images, ScanFiles},
    inspection::{
        self, ExplainReport, ExplainedImage, ExplainedPristine, ExplainedThing, Explanation, PathPolicy,
    },
    observation::Observer,
    report::forensic::{self, LogPlace},
};
use anyhow::Context as _;
use sensor_model::{
    expectation::Expected,
    image::{ImageSource, packages_text},
    observation::Observation,
    verdict::VerdictKind,
};
use std::{
    io,
    path::{Path, PathBuf},
};

/// Arguments.
#[derive(Debug, clap::Args)]
pub struct Explain {
    /// The path on the host; for a unit, the path of its file.
    #[arg(value_parser = host_path)]
    path: PathBuf,
    #[command(flatten)]
    sources: Sources,
    /// Show what this image has at the path, and no other one: a digest, or its beginning of at least six digits. `extensions`, `ostree`, `packages` or
    /// `baseline` for those of the host. `holdfast image index` makes the index. [default: each that has the path, of the
    /// merged extensions, the booted image, the booted ostree commit, the packages and the baseline, as far as they have an index]
    #[arg(long, value_name = "DIGEST")]
    image: Option<String>,
    /// Directory of the forensic log.
    #[arg(long, default_value = forensic::DIRECTORY, value_name = "DIRECTORY")]
    log: PathBuf,
    #[command(flatten)]
    output: Output,
}

impl Explain {
    /// Observes the path and reports.
    ///
    /// # Errors
    /// Bad input, and a log that is not sound or cannot be read.
    pub fn run(&self, screen: &mut Screen) -> anyhow::Result<u8> {
        let log = LogPlace::of_this_machine(&self.log, self.sources.state.as_deref());
        let Explanation { report, doubt } = self.explain(&log)?;
        if self.output.is_json() {
            screen.json(&report)?;
        } else {
            text(&report, screen)?;
        }
        screen.flush()?;
        log_errors::refuse_unsound(doubt.context("the last change is not known")?, screen)?;
        Ok(match report.verdict {
            VerdictKind::Compliant => IN_SYNC,
            VerdictKind::Unknown => FAILURE,
            VerdictKind::Touched | VerdictKind::Drifted => DRIFT,
        })
    }

    /// Explains the path by the config and by the image. A host may have an image and no config.
    fn explain(&self, log: &LogPlace) -> anyhow::Result<Explanation> {
        let images = Images::of(&self.sources.named().state());
        let choose = |observer: &Observer| {
            let chosen = image::choose_indexes(&images, self.image.as_deref(), observer);
            chosen.map_err(|error| BadInput::wrap_if(error.is_input(), error))
        };
        let observe = |root: &Path| {
            let sealed = ScanFiles::of(&self.sources.named().state()).sealed_with_trees();
            Ok(Observer::new(root)?.with_settled_contents().with_sealed(sealed))
        };
        let host = if let Some(host) = self.sources.load_if_any(observe)? {
            host
        } else {
            let root = &self.sources.host_root;
            let observer = observe(root).map_err(BadInput::wrap)?;
            let indexes = choose(&observer)?;
            if !indexes.is_empty() {
                let mut explained =
                    inspection::explain_undeclared(&observer, root, &self.path, log, &indexes)?;
                explained.report.over = self.over(&observer, &images)?;
                return Ok(explained);
            }
            // Its error says where a config could be.
            self.sources.load()?
        };
        let indexes = choose(&host.observer)?;
        let mut explained = runtime()?.block_on(inspection::explain(&host, &self.path, log, &indexes))?;
        explained.report.over = self.over(&host.observer, &images)?;
        Ok(explained)
    }

    /// What is mounted over the hierarchies that the path is in.
    fn over(&self, observer: &Observer, images: &Images) -> anyhow::Result<Vec<CoveredHierarchy>> {
        let mut over = image::covered(observer, images, std::slice::from_ref(&self.path))?;
        over.retain(|hierarchy| hierarchy.has(&self.path));
        Ok(over)
    }
}

fn text(report: &ExplainReport, screen: &mut Screen) -> io::Result<()> {
    if !report.managed {
        let path = clean(&report.path);
        screen.line(&format!("{path} is not managed: no MachineConfig declares it"))?;
    }
    for explained in &report.things {
        thing(explained, screen)?;
    }
    if let Some(explained) = &report.image {
        of_image(&report.path, explained, Precedence::Highest, screen)?;
        let below = if explained.overruled_by.is_some() { Precedence::Highest } else { Precedence::Below };
        for explained in &report.below {
            of_image(&report.path, explained, below, screen)?;
        }
    }
    if let Some(explained) = &report.pristine {
        pristine(explained, screen)?;
    }
    for hierarchy in &report.over {
        for difference in &hierarchy.differences {
            screen.line(&format!(
                "{}: {}",
                screen.paint(Tone::Notable, "over it"),
                clean(&difference.text)
            ))?;
        }
    }
    for waits in &report.waiting {
        screen.line(&format!("{}: {}", screen.paint(Tone::Notable, "waits"), clean(&waits.text)))?;
    }
    if report.managed {
        policy(&report.policy, screen)?;
    }
    match &report.last_change {
        Some(change) => {
            screen.line("last change:")?;
            who::text(change, screen)
        }
        None if report.doubt.is_some() => screen.line("last change: not known"),
        None if report.managed => screen.line("last change: none in the log"),
        None => Ok(()),
    }
}

fn thing(explained: &ExplainedThing, screen: &mut Screen) -> io::Result<()> {
    let word = match explained.verdict {
        VerdictKind::Compliant => screen.paint(Tone::Good, "as declared"),
        VerdictKind::Unknown => screen.paint(Tone::Notable, "unknown"),
        VerdictKind::Touched | VerdictKind::Drifted => screen.paint(Tone::Bad, "drifted"),
    };
    let path = clean(&explained.thing.path().to_string_lossy());
    screen.line(&format!("{} {path}: {word}", explained.expected.noun()))?;
    let (word, source) = match explained.expected {
        Expected::Absent => ("must not exist by", format!("the drift policy {}", explained.source.origin())),
        _ => ("declared by", format!("{} ({})", explained.source.name(), explained.source.origin())),
    };
    let mut rows = vec![(None, vec![word.to_owned(), clean(&source)])];
    let details = describe::expected(&explained.expected).into_iter();
    rows.extend(details.map(|(word, value)| (None, vec![word.to_owned(), value])));
    if let Some(label) = &explained.label {
        rows.push((None, vec!["label".to_owned(), clean(label)]));
    }
    rows.push((None, vec!["found".to_owned(), describe::found(&explained.observation)]));
    let differences = explained.differences.iter();
    rows.extend(
        differences.map(|difference| (Some(Tone::Bad), vec!["differs".to_owned(), clean(&difference.text)])),
    );
    screen.table(2, &rows)
}

/// Whether a source is the first of those that have the path and that no config overrules, or another one overrules it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Precedence {
    /// No other source overrules it.
    Highest,
    /// Another source does.
    Below,
}

fn of_image(
    path: &str,
    explained: &ExplainedImage,
    precedence: Precedence,
    screen: &mut Screen,
) -> io::Result<()> {
    let noun = match explained.source {
        ImageSource::Ostree => "commit",
        ImageSource::Extensions => "extension",
        ImageSource::Packages => "package",
        ImageSource::Baseline => "baseline",
        ImageSource::Layers => "image",
    };
    let name = clean(&explained.name());
    let Some(entry) = &explained.entry else {
        let nothing = match explained.source {
            ImageSource::Extensions | ImageSource::Packages => "none has this path",
            ImageSource::Layers | ImageSource::Ostree | ImageSource::Baseline => {
                "it has nothing at this path"
            }
        };
        return screen.line(&format!("{name}: {nothing}"));
    };
    let word = match (entry.verdict, &explained.overruled_by) {
        (VerdictKind::Compliant, _) => screen.paint(Tone::Good, &format!("as in the {noun}")),
        (VerdictKind::Unknown, _) => screen.paint(Tone::Notable, "unknown"),
        (_, Some(_)) => screen.paint(Tone::Quiet, &format!("differs from the {noun}")),
        (_, None) => screen.paint(Tone::Bad, "drifted"),
    };
    screen.line(&format!("{name}: {word}"))?;
    let layer = &entry.layer;
    let made_from =
        |digest: &String| (None, vec!["made from".to_owned(), format!("image {}", clean(digest))]);
    let mut rows: Vec<_> = explained.manifest.iter().map(made_from).collect();
    rows.push((None, vec!["put there by".to_owned(), clean(&layer.text())]));
    let packages = packages_text(&layer.components);
    rows.extend(packages.iter().map(|named| (None, vec!["layer has".to_owned(), clean(named)])));
    rows.extend(layer.history.iter().map(|line| (None, vec!["history".to_owned(), clean(line)])));
    if entry.path != path {
        rows.push((None, vec!["without links".to_owned(), clean(&entry.path)]));
    }
    rows.push((None, vec![format!("{noun} has"), clean(&entry.expected.summary())]));
    rows.push((None, vec!["found".to_owned(), describe::found(&entry.observation)]));
    let differences = entry.differences.iter();
    rows.extend(
        differences.map(|difference| (Some(Tone::Bad), vec!["differs".to_owned(), clean(&difference.text)])),
    );
    if let Some(deployment) = &entry.other_content_in {
        let text = format!("what the image ships: the earlier deployment {deployment} ships another content");
        rows.push((Some(Tone::Notable), vec!["holds back".to_owned(), clean(&text)]));
    }
    rows.push((None, vec!["strength".to_owned(), entry.strength.as_str().to_owned()]));
    if let Some(tree) = &entry.sealed_tree {
        let text =
            format!("{} is sealed: the daemon has one thing for it, and no watch for this path", clean(tree));
        rows.push((None, vec!["sealed tree".to_owned(), text]));
    }
    if let Some(name) = &explained.overruled_by {
        let text = match precedence {
            Precedence::Highest => format!("the state that {name} declares applies, not that of the {noun}"),
            Precedence::Below => format!("the state of {name} applies, not that of the {noun}"),
        };
        rows.push((None, vec!["precedence".to_owned(), clean(&text)]));
    }
    screen.table(2, &rows)
}

fn pristine(explained: &ExplainedPristine, screen: &mut Screen) -> io::Result<()> {
    let word = match (&explained.observation, explained.differences.as_slice()) {
        (Observation::Unreadable { error }, _) => {
            screen.paint(Tone::Notable, &format!("unknown: {}", clean(error)))
        }
        (_, []) => screen.paint(Tone::Good, "as shipped"),
        (_, kinds) => {
            let kinds: Vec<&str> = kinds.iter().map(|kind| kind.as_str()).collect();
            screen.paint(Tone::Notable, &format!("the present object differs ({})", kinds.join(", ")))
        }
    };
    screen.line(&format!("pristine {}: {word}", clean(&explained.path)))?;
    screen.table(2, &[(None, vec!["image ships".to_owned(), describe::found(&explained.observation)])])
}

fn policy(policy: &PathPolicy, screen: &mut Screen) -> io::Result<()> {
    let action = serde_json::to_value(policy.action).unwrap_or_default();
    let action = action.as_str().unwrap_or_default();
    let by = match (&policy.rule, &policy.origin) {
        (Some(rule), Some(origin)) => clean(&format!("rule {rule} of {origin}")),
        _ => "the default".to_owned(),
    };
    let reason = policy.reason.as_ref().map_or_else(String::new, |reason| format!(": {}", clean(reason)));
    screen.line(&format!("drift policy: {action}, by {by}{reason}"))
}
