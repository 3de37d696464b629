//! The text of a MachineConfig for a scenario.
//!
//! In: a name and files. Out: the text, made by the compiler. The macro comes before the modules that use it.

/// The text of a MachineConfig with this name and these files, each an entry of the list. More of the config may follow them.
macro_rules! machine_config {
    ($name:literal, $files:literal) => {
        concat!(
            "apiVersion: machineconfiguration.openshift.io/v1\nkind: MachineConfig\nmetadata:\n  name: ",
            $name,
            "\n  labels: {machineconfiguration.openshift.io/role: worker}\nspec:\n  config:\n    ignition: {version: 3.4.0}\n",
            "    storage:\n      files:\n",
            $files
        )
    };
}
