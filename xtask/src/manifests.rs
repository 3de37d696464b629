//! Manifests that are made of other files of the repository.
//!
//! In: alerts and scrape in `policies/prometheus`, the admission policies in `deploy/admission`. Out: the alerts as a `PrometheusRule`, the scrape as a `PodMonitor`, and the
//! policies in the form in which an API server reads them from its own disk. `cargo xtask generate` keeps them.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::dist::root;
use crate::pod_monitor::{self, SCRAPE};

/// The files with alerts.
pub(crate) const ALERTS: [&str; 2] = ["policies/prometheus/rules.yaml", "policies/prometheus/cluster.yaml"];
/// The policies of the reporter.
const POLICIES: &str = "deploy/admission/reporter.yaml";
/// The overlay that lets the reporter write annotations too.
const MANAGE: &str = "deploy/kustomize/overlays/manage/kustomization.yaml";
/// The list of these annotations in the policies. The overlay puts another one in its place.
const NO_ANNOTATIONS: &str = "  - name: ourAnnotations\n    expression: \"[]\"\n";
/// What the names of policies that an API server reads from files end with.
const STATIC: &str = ".static.k8s.io";
const MADE: &str = "# Made by `cargo xtask generate`";

/// Each generated manifest by its path in the repository.
pub(crate) fn generated() -> Result<Vec<(PathBuf, String)>> {
    let alerts = ALERTS.map(read).into_iter().collect::<Result<Vec<_>>>()?;
    let policies = static_policies(&read(POLICIES)?)?;
    Ok(vec![
        ("deploy/kustomize/components/prometheus/rules.yaml".into(), prometheus_rule(&alerts)?),
        (
            "deploy/kustomize/components/prometheus/podmonitor.yaml".into(),
            format!("{MADE} of {SCRAPE}.\n{}", pod_monitor::of_scrape(&read(SCRAPE)?)?),
        ),
        (
            "deploy/admission/static/policies-manage/reporter.yaml".into(),
            for_manage(&policies, &read(MANAGE)?)?,
        ),
        ("deploy/admission/static/policies/reporter.yaml".into(), policies),
    ])
}

/// The policies with the annotations of the overlay `manage`.
fn for_manage(policies: &str, overlay: &str) -> Result<String> {
    let value =
        overlay.split_once("path: /spec/variables/2/expression\n      value: >-\n").map(|(_, value)| value);
    let lines = value.unwrap_or_default().lines().take_while(|line| line.starts_with("        "));
    let list = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    if list.is_empty() || policies.matches(NO_ANNOTATIONS).count() != 1 {
        bail!("{MANAGE} or {POLICIES} has its list of annotations at another place");
    }
    let some = NO_ANNOTATIONS.replace("[]", &list);
    Ok(policies
        .replace(NO_ANNOTATIONS, &some)
        .replace("none. The overlay `manage` has a list.", "those of the mode `manage`."))
}

/// The groups of rules of these texts as one object of the Prometheus operator.
fn prometheus_rule(texts: &[String]) -> Result<String> {
    let mut object = format!(
        "{MADE} of {}.\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata:\n  name: holdfast\n  namespace: \
         holdfast-system\n  labels: {{app.kubernetes.io/name: holdfast}}\nspec:\n  groups:\n",
        ALERTS.join(" and ")
    );
    for text in texts {
        let Some((_, groups)) = text.split_once("\ngroups:\n") else {
            bail!("a file with alerts has no groups")
        };
        for line in groups.lines() {
            let indent = if line.is_empty() { "" } else { "  " };
            object.extend([indent, line, "\n"]);
        }
    }
    Ok(object)
}

/// The same policies and bindings under names that only files may have.
fn static_policies(text: &str) -> Result<String> {
    let mut made = format!("{MADE} of {POLICIES}.\n");
    let mut names = 0;
    for line in text.lines() {
        let is_name = ["  name: ", "  policyName: "].iter().any(|key| line.starts_with(key));
        names += usize::from(is_name);
        made.extend([line, if is_name { STATIC } else { "" }, "\n"]);
    }
    let objects = text.matches("\nkind: ").count();
    let bindings = text.matches("\nkind: ValidatingAdmissionPolicyBinding\n").count();
    if names != objects + bindings {
        bail!(
            "{POLICIES}: {objects} objects with {bindings} bindings have {names} names at the expected place"
        );
    }
    Ok(made)
}

fn read(path: impl AsRef<Path>) -> Result<String> {
    let path = root().join(path);
    fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_groups_of_all_files_are_in_one_object_at_their_depth() {
        let made = prometheus_rule(&[
            "# About.\ngroups:\n  - name: a\n    rules: []\n".to_owned(),
            "# About.\ngroups:\n  - name: b\n".to_owned(),
        ]);
        let made = made.unwrap();
        assert!(
            made.ends_with("spec:\n  groups:\n    - name: a\n      rules: []\n    - name: b\n"),
            "{made}"
        );
        assert!(prometheus_rule(&["rules: []\n".to_owned()]).is_err());
    }

    #[test]
    fn the_policies_of_the_mode_manage_have_the_annotations_of_its_overlay() {
        let policies = format!("{NO_ANNOTATIONS}  - name: annotations\n");
        let overlay = "      path: /spec/variables/2/expression\n      value: >-\n        ['a',\n        'b']\nmore: x\n";
        let made = for_manage(&policies, overlay).unwrap();
        assert_eq!(made, "  - name: ourAnnotations\n    expression: \"['a', 'b']\"\n  - name: annotations\n");
        assert!(for_manage(&policies, "patches: []\n").is_err());
        assert!(for_manage("spec: {}\n", overlay).is_err());
    }

    #[test]
    fn policies_and_bindings_get_names_of_files_and_what_they_contain_stays() {
        let policy = "# About.\nkind: ValidatingAdmissionPolicy\nmetadata:\n  name: a\nspec:\n  validations:\n  - name: b\n---\n";
        let binding =
            "kind: ValidatingAdmissionPolicyBinding\nmetadata:\n  name: a\nspec:\n  policyName: a\n";
        let made = static_policies(&format!("{policy}{binding}")).unwrap();
        assert_eq!(made.matches("  name: a.static.k8s.io\n").count(), 2, "{made}");
        assert!(made.contains("  policyName: a.static.k8s.io\n") && made.contains("  - name: b\n"), "{made}");
        assert!(static_policies("# About.\nkind: ValidatingAdmissionPolicy\nmetadata: {name: a}\n").is_err());
    }
}
