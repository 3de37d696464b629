//! The acts of a plan.
//!
//! In: a plan. Out: acts of the journal, in the plan's order, each with its limit and its fallback. The write and the reboot are
//! requests of the journal's machine. Holdfast runs no drain.

use sensor_model::{
    expectation::SYSTEMD_DIRECTORY,
    host::unit_name::template_of,
    journal::{Act, Action, Fallback},
    merge::Rendered,
    plan::{ACT_SECONDS, Plan},
};

/// The target of a link that masks a unit.
const MASK: &str = "/dev/null";

/// The plan's steps as acts of the journal.
pub(super) fn acts(plan: &Plan, new: &Rendered, os: bool) -> Vec<Act> {
    let os = os.then(|| Act {
        kind: Action::Os,
        unit: None,
        timeout_s: 3600,
        fallback: Fallback::Rollback,
        because: Vec::new(),
        masked: false,
    });
    let steps = plan.steps.iter().filter(|step| step.action.is_act()).map(|step| Act {
        kind: step.action,
        unit: step.target.clone(),
        timeout_s: step.timeout_seconds.unwrap_or(ACT_SECONDS),
        fallback: step.fallback.unwrap_or_default(),
        because: step.because.clone(),
        masked: step.target.as_deref().is_some_and(|unit| masks(new, unit)),
    });
    os.into_iter().chain(steps).collect()
}

/// Whether a config masks a unit or its template.
fn masks(config: &Rendered, unit: &str) -> bool {
    let template = template_of(unit);
    [Some(unit), template.as_deref()].into_iter().flatten().any(|name| {
        let declared = config.units.get(name).and_then(|unit| unit.mask.as_ref());
        let link = config.links.get(&format!("{SYSTEMD_DIRECTORY}/{name}"));
        declared.is_some_and(|mask| mask.value)
            || link.is_some_and(|link| link.value.target.as_deref() == Some(MASK))
    })
}

/// The configs have extensions and differ in their image. No OS tool reads that field, so a reboot would change nothing.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "baseOSExtensionsContainerImage: no OS backend can install extensions from this image; they come from the host's \
     repositories, so leave the field unchanged"
)]
pub(super) struct UnusedExtensionsImage;

/// Checks that a change of the extensions image needs no OS tool.
pub(super) fn check_extensions(old: &Rendered, new: &Rendered) -> Result<(), UnusedExtensionsImage> {
    let image =
        |side: &Rendered| side.base_os_extensions_container_image.as_ref().map(|image| image.value.clone());
    let takes_none = old.extensions.is_empty() && new.extensions.is_empty();
    if takes_none || image(old) == image(new) { Ok(()) } else { Err(UnusedExtensionsImage) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sensor_model::{
        expectation::Source,
        ignition::Purpose,
        machine_config::parse_for,
        merge::{self, Sourced},
    };

    #[test]
    fn a_config_masks_a_unit_by_the_unit_its_template_or_a_link_to_dev_null() {
        let text = r#"{"ignition": {"version": "3.4.0"},
            "systemd": {"units": [{"name": "a.service", "mask": true}, {"name": "b@.service", "mask": true},
                {"name": "c.service", "mask": false}, {"name": "d.service", "enabled": true}]},
            "storage": {"links": [{"path": "/etc/systemd/system/e.service", "target": "/dev/null"},
                {"path": "/etc/systemd/system/f.service", "target": "/etc/g.service"}]}}"#;
        let parsed = parse_for("a.ign", text.as_bytes(), Purpose::Verify).unwrap().machine_configs;
        let config = merge::merge(parsed).unwrap();
        let units =
            ["a.service", "b@1.service", "c.service", "d.service", "e.service", "f.service", "g.service"];
        let masked: Vec<&str> = units.into_iter().filter(|unit| masks(&config, unit)).collect();
        assert_eq!(masked, ["a.service", "b@1.service", "e.service"]);
    }

    #[test]
    fn another_extensions_image_is_refused_if_a_config_has_extensions() {
        let source = Source::new("a", "a.yaml");
        let sourced = |text: &str| Sourced { value: text.to_owned(), source: source.clone() };
        let with = |image: &str, extensions: &[&str]| Rendered {
            base_os_extensions_container_image: Some(sourced(image)),
            extensions: extensions.iter().map(|name| sourced(name)).collect(),
            ..Rendered::default()
        };
        assert_eq!(check_extensions(&with("a", &[]), &with("b", &[])), Ok(()));
        assert_eq!(check_extensions(&with("a", &["usbguard"]), &with("a", &["usbguard"])), Ok(()));
        assert!(check_extensions(&with("a", &["usbguard"]), &with("b", &["usbguard"])).is_err());
    }
}
