use super::*;

#[test]
fn a_part_ends_with_its_buffer() {
    let mut key = Key::GLOBAL;
    key.write_one(|room| {
        room.fill(b'a');
        u8::MAX
    });
    assert_eq!(key, Key::of([vec![b'a'; INLINE_BYTES - 1]]));
}

#[test]
fn parts_come_back_as_they_went_in() {
    for parts in [
        &[][..],
        &[""],
        &["", ""],
        &["a"],
        &["a", "", "b"],
        &[&"x".repeat(61)],
        &[&"x".repeat(62)],
        &[&"x".repeat(30), &"y".repeat(30)],
        &[&"x".repeat(30), &"y".repeat(31), "z"],
        &[&"x".repeat(127), &"y".repeat(128), &"z".repeat(70_000)],
    ] {
        let key = Key::of(parts);
        let back: Vec<_> = key.parts().map(|part| std::str::from_utf8(part).unwrap()).collect();
        assert_eq!(back, parts);
    }
}

#[test]
fn an_owned_key_is_the_key_that_it_was_made_of() {
    for length in [0, 1, 60, 61, 62, 63, 127, 128, 255, 256, 70_000] {
        let part = "x".repeat(length);
        let (borrowed, owned) = (Key::from(&part), Key::from(&part).owned());
        assert_eq!(borrowed, owned);
        assert_eq!(owned, Key::of([&part]));
        assert!(owned.parts().eq([part.as_bytes()]), "{length}");
        assert_ne!(owned, Key::of([&part, ""]));
    }
}

#[test]
fn nothing_of_another_key_is_left() {
    for before in [Key::GLOBAL, Key::from("alice"), Key::of(["x".repeat(60)]), Key::of(["x".repeat(70)])] {
        for part in ["", "b", "a rather long part"] {
            let mut key = before.clone();
            key.set_one(part.as_bytes());
            assert_eq!(key, Key::from(part));
            assert!(key.parts().eq([part.as_bytes()]));
        }
    }
}

#[test]
fn no_part_and_an_empty_part_differ() {
    assert_ne!(Key::GLOBAL, Key::from(""));
}

#[test]
fn rules_are_told_apart_by_name() {
    assert_eq!(RuleId::new("a"), RuleId::new("a"));
    assert_ne!(RuleId::new("a"), RuleId::new("b"));
    assert_ne!(RuleId::new("a").stable_hash(), RuleId::new("b").stable_hash());
}
