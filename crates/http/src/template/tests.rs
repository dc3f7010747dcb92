use http::StatusCode;

use super::*;

const HOSTILE: &str = "a\"b'<script>&\\\u{1}</script>{{rule}}\n";

fn explanation<'a>(rule: Option<&'a str>, retry_after: Option<u64>) -> TemplateValues<'a> {
    let status = StatusCode::TOO_MANY_REQUESTS;
    TemplateValues {
        status,
        kind: "about:blank",
        title: "Too much",
        detail: &"Wait.",
        rule,
        retry_after,
        request_id: rule,
    }
}

#[test]
fn values_stand_in_place_of_placeholders() {
    let page = Template::html("<p title='{{title}}'>{{status}} {{reason}}: {{ detail }} {{retry_after}}</p>").unwrap();
    let text = page.render(&explanation(None, Some(7)));
    assert_eq!(text, "<p title='Too much'>429 Too Many Requests: Wait. 7</p>");
    assert_eq!(Template::html("[{{rule}}|{{retry_after}}]").unwrap().render(&explanation(None, None)), "[|]");
}

#[test]
fn a_value_in_html_is_never_markup() {
    let page = Template::html("<a title=\"{{rule}}\">{{rule}}</a><!-- {{rule}} -->").unwrap();
    let text = page.render(&explanation(Some(HOSTILE), None));
    assert_eq!(text.matches('<').count(), 3, "{text}");
    assert_eq!(text.matches('"').count(), 2, "{text}");
    assert!(text.contains("a&quot;b&#39;&lt;script&gt;&amp;\\\u{FFFD}"), "{text}");
}

#[test]
fn a_value_in_json_is_a_value_or_a_part_of_a_string() {
    let body = Template::json(
        r#"{"a": {{rule}}, "b": "by \"{{rule}}\", {{retry_after}} s", "c": {{retry_after}}, "d": [{{status}}]}"#,
    )
    .unwrap();
    let read = |rule, wait| serde_json::from_str::<serde_json::Value>(&body.render(&explanation(rule, wait))).unwrap();
    let value = read(Some(HOSTILE), Some(7));
    assert_eq!(value["a"], HOSTILE);
    assert_eq!(value["b"], format!("by \"{HOSTILE}\", 7 s"));
    assert_eq!((&value["c"], &value["d"][0]), (&7.into(), &429.into()));
    let nothing = read(None, None);
    assert!(nothing["a"].is_null() && nothing["c"].is_null());
    assert_eq!(nothing["b"], "by \"\",  s");
}

#[test]
fn a_mistake_is_reported_with_its_position() {
    for (text, message) in [
        ("<p>\nx {{rle}}", "2:3: there is no placeholder `rle`"),
        ("é{{rule", "1:2: `{{` begins a placeholder that does not end"),
        ("{{rule\n}}", "1:1: `{{` begins a placeholder that does not end"),
        ("<p title={{rule}}>", "1:10: a placeholder within a tag that is not in quotes"),
        ("<script src=x>\nlet a = {{rule}}", "2:9: a placeholder within `<script>`"),
        ("<STYLE>{{rule}}</style>", "1:8: a placeholder within `<style>`"),
    ] {
        assert_eq!(Template::html(text).unwrap_err().to_string(), message, "{text}");
    }
    for (text, message) in [
        ("{\"a\":\n  {{nope}}}", "2:3: there is no placeholder `nope`"),
        ("{\"a\": {{rule}}\n \"b\": 1}", "2:2: this is not JSON: expected `,` or `}`"),
        ("{\"é\": {{rule}} {{rule}}}", "1:16: this is not JSON: expected `,` or `}`"),
        ("", "1:1: this is not JSON: EOF while parsing a value"),
        ("{\"a\": \"{{rule}}", "1:15: this is not JSON: EOF while parsing a string"),
        ("<p>{{rule}}", "1:1: this is not JSON: expected value"),
    ] {
        assert_eq!(Template::json(text).unwrap_err().to_string(), message, "{text}");
    }
    assert!(Template::html("x {{").unwrap_err().help.contains("}}"));
    assert!(Template::html("{{zzzzzzzzz}}").unwrap_err().help.contains("`rule`, `retry_after`"));
}

#[test]
fn code_may_have_braces_and_text_may_have_angles() {
    for text in [
        "<script>const a = {{b: 1}}; if (a < 2) {{ }}</script><p>{{rule}}</p>",
        "a < b {{rule}}",
        "<!doctype html><title>{{title}}</title>",
        "<p data-a=\"x > y\">{{rule}}",
        "<scripture>{{rule}}</scripture>",
    ] {
        assert!(Template::html(text).is_ok(), "{text}: {:?}", Template::html(text));
    }
}
