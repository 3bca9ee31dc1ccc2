/* The page of a report: what is in it, and that no text of a model becomes HTML. */
#include <string.h>

#include "api/html/report.h"
#include "tests/cm.h"

static const struct mlo_report_page PAGE = {.title = "<b>net</b>"};

static void page_of(const char *json, struct mlo_buf *out)
{
    struct mlo_error err = {0};
    json_error_t where;
    json_t *report = json_loads(json, 0, &where);
    if (!report)
        fail_msg("%s", where.text);
    assert_ok(mlo_report_html(report, &PAGE, out, &err));
    json_decref(report);
}

static void assert_holds(const struct mlo_buf *page, const char *part)
{
    if (!strstr(mlo_buf_str(page), part))
        fail_msg("the page lacks %s", part);
}

static void assert_lacks(const struct mlo_buf *page, const char *part)
{
    const char *at = strstr(mlo_buf_str(page), part);
    if (at)
        fail_msg("the page holds %.120s", at);
}

#define EVIL "<script>alert('1')</script>"
#define ROUGH "\\\"><img src=x onerror=1>"

static const char WHOLE[] =
    "{\"format\": \"mlopt-report-1\", \"numerics\": \"" EVIL "\","
    "\"source\": {\"digest\": \"" EVIL
    "\", \"file_bytes\": 4000, \"weight_bytes\": 3000, \"nodes\": 3, \"opset\": 13},"
    "\"variant\": {\"digest\": \"sha256:2\", \"file_bytes\": 1000, \"weight_bytes\": 900, \"nodes\": 9, "
    "\"opset\": 13},"
    "\"data\": {\"accuracy\": {\"role\": \"" EVIL
    "\", \"samples\": 100}, \"tensors\": {\"role\": \"calibrate\", "
    "\"samples\": 8, \"of\": 9}},"
    "\"accuracy\": {\"metrics\": [{\"metric\": \"" EVIL "\", \"unit\": \"fraction\", \"n\": 100, "
    "\"source\": {\"value\": 0.9, \"low\": 0.8, \"high\": 0.95}, \"variant\": {\"value\": 0.89, \"low\": "
    "0.79, \"high\": "
    "0.94}, \"difference\": {\"value\": -0.01, \"low\": -0.02, \"high\": 0.005}, \"mcnemar_p\": 0.5}]},"
    "\"precision\": {\"sums\": {\"integer\": {\"nodes\": 1, \"macs\": 30, \"weight_bytes\": 10}, \"float\": "
    "{\"nodes\": 1, "
    "\"macs\": 10, \"weight_bytes\": 20}}, \"nodes\": [{\"node\": \"" EVIL "\", \"op\": \"" ROUGH
    "\", \"runs_in\": \"float\", \"precision\": \"" EVIL "\", \"why\": \"" EVIL "\", \"macs\": 10}]},"
    "\"tensors\": [{\"tensor\": \"" EVIL "\", \"kind\": \"value\", \"dtype\": \"" ROUGH "\", \"scale\": 0.5, "
    "\"zero_point\": 1, \"range\": [-1, 2], \"observed\": [-2, 2.5], \"clipped\": 0.125, \"sqnr_db\": 12.3, "
    "\"grid_sqnr_db\": 14.5, \"histogram\": {\"low\": -2, \"width\": 1, \"counts\": [1, 5, 9, 2, 1]}}],"
    "\"samples\": {\"classes\": [\"" EVIL
    "\", \"dress\"], \"outcomes\": {\"changed\": 1, \"both_right\": 89, \"lost\": 1, "
    "\"gained\": 0, \"both_wrong\": 10}, \"worst\": [{\"sample\": 7, \"label\": 0, \"source\": {\"class\": "
    "0, \"score\": "
    "2}, \"variant\": {\"class\": 1, \"score\": 3}, \"deviation\": 1.5, \"output\": \"" EVIL
    "\", \"element\": 1, \"source_value\": 1.5, \"variant_value\": null}], \"changed\": []},"
    "\"steps\": [{\"step\": \"" EVIL "\", \"options\": {\"" EVIL "\": \"" EVIL "\", \"list\": [\"" EVIL
    "\", 99.99]}}],"
    "\"notes\": [{\"step\": \"" EVIL "\", \"node\": \"" EVIL "\", \"note\": \"" EVIL "\"}]}";

static void test_report_page__takes_no_text_for_html(void **state)
{
    MLO_UNUSED(state);
    struct mlo_buf page = MLO_BUF_INIT;
    page_of(WHOLE, &page);
    assert_lacks(&page, "<script");
    assert_lacks(&page, "<img");
    assert_lacks(&page, "<b>net");
    assert_holds(&page, "&lt;script&gt;alert(&#39;1&#39;)&lt;/script&gt;");
    assert_holds(&page, "<h1>&lt;b&gt;net&lt;/b&gt;</h1>");
    mlo_buf_clear(&page);
}

static void test_report_page__needs_nothing_else(void **state)
{
    MLO_UNUSED(state);
    static const char *const OUTSIDE[] = {"http:", "https:", " src=", "url(", "@import", " style="};
    struct mlo_buf page = MLO_BUF_INIT;
    char *end;
    page_of("{\"format\": \"mlopt-report-1\", \"tensors\": [{\"tensor\": \"t\", \"histogram\": {\"low\": 0, "
            "\"width\": 1, "
            "\"counts\": [3]}}]}",
            &page);
    for (size_t i = 0; i < MLO_COUNT(OUTSIDE); i++)
        assert_lacks(&page, OUTSIDE[i]);
    /* one style sheet, which a policy can name by its hash */
    assert_non_null(end = strstr(mlo_buf_str(&page), "</style>"));
    assert_null(strstr(end, "<style"));
    char style[64];
    mlo_report_style_source(style);
    assert_int_equal(strlen(style), 7 + 44);
    assert_memory_equal(style, "sha256-", 7);
    mlo_buf_clear(&page);
}

static void test_report_page__shows_what_was_measured(void **state)
{
    MLO_UNUSED(state);
    static const char *const PARTS[] = {
        "89.00&nbsp;%",
        "-1.00&nbsp;pt",
        "-2.00 to +0.50",
        "0.25× of 4.00 kB",
        "75.0&nbsp;%",
        "12.3&nbsp;dB",
        "14.5 alone",
        "12.5&nbsp;%",
        "-1&nbsp;to&nbsp;2",
        "class=\"mark\"",
        "1 dress",
        "<td class=\"n\">7</td>",
        "99.99",
    };
    struct mlo_buf page = MLO_BUF_INIT;
    page_of(WHOLE, &page);
    for (size_t i = 0; i < MLO_COUNT(PARTS); i++)
        assert_holds(&page, PARTS[i]);
    mlo_buf_clear(&page);
}

/* What is not on the page is said, and why; the JSON has no more samples than the page. */
static void test_report_page__says_what_is_left_out(void **state)
{
    MLO_UNUSED(state);
    struct mlo_buf page = MLO_BUF_INIT;
    page_of("{\"format\": \"mlopt-report-1\", \"accuracy\": {\"metrics\": [], \"left_out\": [{\"metric\": "
            "\"top1\", "
            "\"why\": \"the output <i>has</i> no classes\"}]}, \"precision\": {\"nodes\": [{\"node\": \"a\", "
            "\"runs_in\": \"integer\"}]}, \"samples\": {\"outcomes\": {\"lost\": 24, \"both_right\": 1}, "
            "\"worst\": "
            "[{\"sample\": 3}], \"changed\": [{\"sample\": 3}, {\"sample\": 4}]}}",
            &page);
    assert_holds(&page, "Not measured: top1, since the output &lt;i&gt;has&lt;/i&gt; no classes.");
    assert_holds(&page, "The 2 of these 24 whose outputs moved most.");
    assert_lacks(&page, "which are in the JSON");
    assert_holds(&page, "<summary>1 node that does not stay in float</summary>");
    mlo_buf_clear(&page);
}

/* Whoever submits a run can have any JSON stored as its report. */
static void test_report_page__stands_members_of_other_types(void **state)
{
    MLO_UNUSED(state);
    static const char *const CASES[] = {
        "{\"format\": \"mlopt-report-1\"}",
        "{\"format\": \"mlopt-report-1\", \"tensors\": 5, \"samples\": [], \"precision\": \"x\", "
        "\"accuracy\": 3, "
        "\"steps\": {}, \"notes\": 1, \"data\": null, \"source\": [], \"variant\": -1}",
        "{\"format\": \"mlopt-report-1\", \"tensors\": [1, null, \"x\", {\"range\": [1], \"observed\": [2, "
        "\"a\"], "
        "\"histogram\": {\"low\": 0, \"width\": 1, \"counts\": [\"a\", -1, 1e300]}}, {\"histogram\": "
        "{\"low\": 1e308, "
        "\"width\": 1e308, \"counts\": [1, 1, 1]}}, {\"histogram\": {\"low\": 0, \"width\": 0, \"counts\": "
        "[1]}}], "
        "\"precision\": {\"sums\": {\"integer\": {\"nodes\": 1, \"macs\": -5, \"weight_bytes\": -1}}, "
        "\"nodes\": [1, {}, "
        "null]}, \"samples\": {\"worst\": [1, {\"source\": {\"class\": -1}, \"label\": 99}], \"classes\": 3, "
        "\"changed\": [null]}, \"accuracy\": {\"metrics\": [3, {\"difference\": 1}]}, \"steps\": [1], "
        "\"notes\": [2]}",
    };
    for (size_t i = 0; i < MLO_COUNT(CASES); i++) {
        struct mlo_buf page = MLO_BUF_INIT;
        page_of(CASES[i], &page);
        assert_holds(&page, "</html>");
        mlo_buf_clear(&page);
    }
}

static void test_report_page__folds_long_lists(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf page = MLO_BUF_INIT;
    json_t *tensors = json_array();
    for (int i = 0; i < 200; i++) {
        char name[32];
        snprintf(name, sizeof name, "tensor_%d", i);
        json_array_append_new(tensors, json_pack("{s:s,s:f}", "tensor", name, "sqnr_db", 10.0 + i));
    }
    json_t *report = json_pack("{s:s,s:o}", "format", "mlopt-report-1", "tensors", tensors);
    assert_ok(mlo_report_html(report, &PAGE, &page, &err));
    const char *fold = strstr(mlo_buf_str(&page), "<details><summary>188 more tensors");
    assert_non_null(fold);
    assert_true(strstr(mlo_buf_str(&page), ">tensor_11<") < fold);
    assert_true(strstr(mlo_buf_str(&page), ">tensor_12<") > fold);
    assert_holds(&page, ">tensor_199<");
    mlo_buf_clear(&page);
    json_decref(report);
}

static void test_report_page__refuses_another_form(void **state)
{
    MLO_UNUSED(state);
    struct mlo_error err = {0};
    struct mlo_buf page = MLO_BUF_INIT;
    json_t *report = json_pack("{s:s}", "format", "mlopt-report-2");
    assert_int_equal(mlo_report_html(report, &PAGE, &page, &err), MLO_EFORMAT);
    assert_non_null(strstr(err.message, "mlopt-report-2"));
    json_decref(report);
    mlo_buf_clear(&page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report_page__takes_no_text_for_html),
        cmocka_unit_test(test_report_page__needs_nothing_else),
        cmocka_unit_test(test_report_page__shows_what_was_measured),
        cmocka_unit_test(test_report_page__says_what_is_left_out),
        cmocka_unit_test(test_report_page__stands_members_of_other_types),
        cmocka_unit_test(test_report_page__folds_long_lists),
        cmocka_unit_test(test_report_page__refuses_another_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
