//! The acts of a plan.
//!
//! In: a plan. Out: acts of the journal, in the plan's order, each with its limit and its fallback. A drain is the cluster's work;
//! the write and the reboot are the journal's own.

use sensor_model::{
    expectation::SYSTEMD_DIRECTORY,
    host::unit_name::template_of,
    journal::{Act, Action, Fallback},
    merge::Rendered,
    plan::{ACT_SECONDS, Plan},
};

/// The target of the link that masks a unit.
const NOTHING: &str = "/dev/null";

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
            || link.is_some_and(|link| link.value.target.as_deref() == Some(NOTHING))
    })
}

/// Why a change of the extensions image is refused: no OS backend reads that field, so a reboot would change nothing.
pub(super) fn unused(old: &Rendered, new: &Rendered) -> Option<String> {
    let image =
        |side: &Rendered| side.base_os_extensions_container_image.as_ref().map(|image| image.value.clone());
    let takes_none = old.extensions.is_empty() && new.extensions.is_empty();
    (!takes_none && image(old) != image(new)).then(|| {
        "baseOSExtensionsContainerImage: no OS backend takes extensions from an image of their own; \
         they come from the host's repositories, so leave the field as it is"
            .to_owned()
    })
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
    fn a_config_masks_a_unit_by_the_unit_its_template_or_a_link_to_nothing() {
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
    fn another_extensions_image_is_refused_where_extensions_are_taken() {
        let source = Source::new("a", "a.yaml");
        let said = |text: &str| Sourced { value: text.to_owned(), source: source.clone() };
        let with = |image: &str, extensions: &[&str]| Rendered {
            base_os_extensions_container_image: Some(said(image)),
            extensions: extensions.iter().map(|name| said(name)).collect(),
            ..Rendered::default()
        };
        assert_eq!(unused(&with("a", &[]), &with("b", &[])), None);
        assert_eq!(unused(&with("a", &["usbguard"]), &with("a", &["usbguard"])), None);
        assert!(unused(&with("a", &["usbguard"]), &with("b", &["usbguard"])).is_some());
    }
}
