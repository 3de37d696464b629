//! Names of unit templates and of their instances: `getty@.service`, `getty@tty1.service`.
//!
//! In: a name. Out: its template, its instance, or the name of another instance.

/// Whether it is the name of a template.
pub fn is_template(name: &str) -> bool {
    instance(name) == Some("")
}

/// The instance in a name, empty in that of a template; `None` for names without `@`.
pub fn instance(name: &str) -> Option<&str> {
    let (_, rest) = name.split_once('@')?;
    Some(rest.rsplit_once('.')?.0)
}

/// `getty@.service` of `getty@tty1.service` and of itself; `None` for names without `@`.
pub fn template_of(name: &str) -> Option<String> {
    with_instance(name, "")
}

/// `getty@tty2.service` of `getty@tty1.service` and `tty2`; `None` for names without `@`.
pub fn with_instance(name: &str, instance: &str) -> Option<String> {
    let (prefix, rest) = name.split_once('@')?;
    let (_, suffix) = rest.rsplit_once('.')?;
    Some(format!("{prefix}@{instance}.{suffix}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_a_template_and_an_instance_only_with_an_at_sign_before_its_suffix() {
        for (name, template, found) in [
            ("getty@tty1.service", Some("getty@.service"), Some("tty1")),
            ("getty@.service", Some("getty@.service"), Some("")),
            ("a@b@c.d.service", Some("a@.service"), Some("b@c.d")),
            ("plain.service", None, None),
            ("broken@", None, None),
        ] {
            assert_eq!((template_of(name).as_deref(), instance(name)), (template, found), "{name}");
            assert_eq!(is_template(name), name == "getty@.service", "{name}");
        }
        assert_eq!(with_instance("a@b.service", "c").as_deref(), Some("a@c.service"));
    }
}
