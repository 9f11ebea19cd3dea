//! Which crate may use which.

use std::collections::BTreeMap;

use super::{Package, packages};

/// Every crate and its floor. A crate may use only crates on lower floors.
const FLOORS: &[(&str, u8)] = &[
    ("dalsegno", 3),
    ("kubectl-dalsegno", 3),
    ("dalsegno-e2e", 3),
    ("dalsegno-e2e-agent", 3),
    ("dalsegno-example", 3),
    ("dalsegno-core", 2),
    ("dalsegno-gateway", 2),
    ("dalsegno-sdk", 2),
    ("dalsegno-proof", 1),
    ("dalsegno-store", 1),
    ("dalsegno-crds", 0),
    ("dalsegno-format", 0),
    ("dalsegno-model", 0),
    ("dalsegno-protocol", 0),
];

/// Crates that may use crates of their own floor, and which. A crate in this list uses only crates before it.
const SIDEWAYS: &[(&str, &[&str])] = &[
    ("dalsegno-protocol", &[]),
    ("dalsegno-model", &["dalsegno-protocol"]),
    ("dalsegno-crds", &["dalsegno-model"]),
    ("dalsegno-format", &["dalsegno-protocol", "dalsegno-model"]),
    ("dalsegno-proof", &[]),
    // For what it passes on of it.
    ("dalsegno-store", &["dalsegno-proof"]),
];

/// Crates that may use no other of ours than these.
const ONLY: &[(&str, &[&str])] = &[
    ("dalsegno-core", &["dalsegno-crds", "dalsegno-model", "dalsegno-protocol"]),
    ("dalsegno-sdk", &["dalsegno-protocol"]),
    // Neither the operator, nor the gateway, nor an engine of the store.
    (
        "kubectl-dalsegno",
        &[
            "dalsegno-core",
            "dalsegno-crds",
            "dalsegno-format",
            "dalsegno-model",
            "dalsegno-proof",
            "dalsegno-protocol",
        ],
    ),
    ("dalsegno-example", &["dalsegno-sdk"]),
    ("dalsegno-e2e", &["dalsegno-crds", "dalsegno-protocol", "dalsegno-sdk"]),
    ("dalsegno-e2e-agent", &["dalsegno-sdk", "dalsegno-protocol"]),
];

#[test]
fn no_crate_uses_one_that_stands_above_it() {
    let problems = problems(&packages());
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn what_is_listed_of_one_floor_has_an_order() {
    for (at, (name, used)) in SIDEWAYS.iter().enumerate() {
        let before: Vec<_> = SIDEWAYS[..at].iter().map(|(name, _)| name).collect();
        for used in *used {
            assert!(before.contains(&used), "{name} uses {used}, which comes later");
        }
    }
}

#[test]
fn an_arrow_that_goes_up_is_seen() {
    let package = |name: &str, needs: &[&str]| Package {
        name: name.into(),
        roots: Vec::new(),
        needs: needs.iter().map(|need| (*need).to_owned()).collect(),
    };
    let found = |package| problems(&[package]).len();
    assert_eq!(found(package("dalsegno-store", &["dalsegno-core"])), 1, "up");
    assert_eq!(found(package("dalsegno-core", &["dalsegno-gateway"])), 2, "sideways, and not in its list");
    assert_eq!(found(package("dalsegno-core", &["dalsegno-store"])), 1, "down, and not in its list");
    assert_eq!(found(package("dalsegno-model", &["dalsegno-crds"])), 1, "sideways and not listed");
    assert_eq!(found(package("dalsegno-new", &[])), 1, "it has no floor");
    assert_eq!(found(package("dalsegno-store", &["dalsegno-model", "dalsegno-proof"])), 0);
}

fn problems(packages: &[Package]) -> Vec<String> {
    let floors: BTreeMap<_, _> = FLOORS.iter().copied().collect();
    let mut problems = Vec::new();
    for Package { name, needs, .. } in packages {
        let Some(floor) = floors.get(&**name) else {
            problems.push(format!("{name} has no floor"));
            continue;
        };
        let listed = |list: &[(&str, &'static [&'static str])]| {
            list.iter().find(|(of, _)| of == name).map(|(_, listed)| *listed)
        };
        for need in needs {
            let goes_down = floors.get(&**need).is_some_and(|below| below < floor);
            let is_sideways = floors.get(&**need) == Some(floor)
                && listed(SIDEWAYS).is_some_and(|listed| listed.contains(&&**need));
            if !goes_down && !is_sideways {
                problems
                    .push(format!("{name} (floor {floor}) uses {need} (floor {:?})", floors.get(&**need)));
            }
            if listed(ONLY).is_some_and(|listed| !listed.contains(&&**need)) {
                problems.push(format!("{name} uses {need}, and may not"));
            }
        }
    }
    problems
}
