/* The page of a distillation evaluation: what is in it, and that no text of a model or of data becomes HTML.
 */
#include <string.h>

#include "api/html/report.h"
#include "tests/cm.h"

static void page_of(const char *json, struct mlo_buf *out)
{
    struct mlo_error err = {0};
    json_error_t where;
    const struct mlo_report_page page = {.title = "<b>student</b>"};
    json_t *report = json_loads(json, 0, &where);
    if (!report)
        fail_msg("%s", where.text);
    assert_ok(mlo_report_html(report, &page, out, &err));
    json_decref(report);
}

static void assert_holds(const struct mlo_buf *page, const char *part)
{
    if (!strstr(mlo_buf_str(page), part))
        fail_msg("the page lacks %s", part);
}

#define EVIL "<script>alert('1')</script>"
#define E(v, low, high) "{\"value\": " #v ", \"low\": " #low ", \"high\": " #high ", \"n\": 100}"
#define SCHEME                                                                                               \
    "{\"ece\": " E(0.05, 0.04,                                                                               \
                   0.06) ", \"bins\": [{\"from\": 0.5, \"to\": 0.75, \"n\": 40, \"confidence\": 0.7, "       \
                         "\"accuracy\": 0.6}, {\"from\": 0.75, \"to\": 1, \"n\": 60, \"confidence\": 0.9, "  \
                         "\"accuracy\": 0.95}]}"
#define SIDE "{\"equal_width\": " SCHEME ", \"equal_mass\": " SCHEME "}"
#define MODEL                                                                                                \
    "{\"name\": \"" EVIL "\", \"digest\": \"" EVIL "\", \"output\": \"" EVIL "\", \"scores\": \"" EVIL       \
    "\", \"width\": 2, \"file_bytes\": 4000, \"nodes\": 3, \"opset\": 13}"

static const char WHOLE[] =
    "{\"format\": \"mlopt-distill-1\", \"task\": \"classes\", \"samples\": 100, "
    "\"temperature\": 4, \"classes\": 2, "
    "\"numerics\": \"" EVIL "\", \"engine\": \"" EVIL "\", \"class_names\": [\"" EVIL
    "\", \"dress\"], \"teacher\": " MODEL ", \"student\": " MODEL
    ", \"size_ratio\": 0.25, \"metrics\": [{\"metric\": \"" EVIL
    "\", \"unit\": \"fraction\", \"higher_is_better\": true, \"teacher\": " E(
        0.9, 0.8,
        0.95) ", \"student\": " E(0.85, 0.75,
                                  0.9) ", \"difference\": " E(-0.05, -0.08,
                                                              -0.02) ", \"mcnemar_p\": 0.0123}],"
                                                                     "\"distances\": [{\"metric\": "
                                                                     "\"agreement\", \"unit\": \"fraction\", "
                                                                     "\"value\": 0.91, \"low\": 0.9, "
                                                                     "\"high\": "
                                                                     "0.92}, "
                                                                     "{\"metric\": \"kl\", \"unit\": "
                                                                     "\"nats\", "
                                                                     "\"value\": 0.125, \"low\": 0.1, "
                                                                     "\"high\": 0.2}],"
                                                                     "\"calibration\": {\"bins\": 4, "
                                                                     "\"teacher\": " SIDE
                                                                     ", \"student\": " SIDE
                                                                     ", \"difference\": {\"equal_width\": " E(0.01, -0.01, 0.02) ", \"equal_mass\": " E(
                                                                         0.02, 0.01,
                                                                         0.03) "}},"
                                                                               "\"outcomes\": "
                                                                               "{\"both_right\": "
                                                                               "83, \"lost\": 7, \"gained\": "
                                                                               "2, \"both_wrong\": 8},"
                                                                               "\"per_class\": [{\"class\": "
                                                                               "0, "
                                                                               "\"n\": 50, \"teacher\": 0.9, "
                                                                               "\"student\": 0.8, "
                                                                               "\"difference\": " E(
                                                                                   -0.1, -0.2,
                                                                                   -0.05) ", \"p\": 0.01, "
                                                                                          "\"p_holm\": 0.02, "
                                                                                          "\"agreement\": "
                                                                                          "0.88, \"kl\": "
                                                                                          "0.2}, "
                                                                                          "{\"class\": 1, "
                                                                                          "\"n\": 0}],"
                                                                                          "\"per_slice\": "
                                                                                          "[{\"slice\": "
                                                                                          "\"" EVIL
                                                                                          "\", \"n\": 50, "
                                                                                          "\"teacher\": 0.9, "
                                                                                          "\"student\": 0.9, "
                                                                                          "\"difference\":"
                                                                                          " " E(
                                                                                              0, -0.1,
                                                                                              0.1) ", "
                                                                                                   "\"p_"
                                                                                                   "holm\":"
                                                                                                   " 1}],"
                                                                                                   "\"confu"
                                                                                                   "sion"
                                                                                                   "\": "
                                                                                                   "{\"samp"
                                                                                                   "les"
                                                                                                   "\": 9, "
                                                                                                   "\"pairs"
                                                                                                   "\": "
                                                                                                   "1, "
                                                                                                   "\"list"
                                                                                                   "\": "
                                                                                                   "[{"
                                                                                                   "\"teach"
                                                                                                   "er\""
                                                                                                   ": 0, "
                                                                                                   "\"stude"
                                                                                                   "nt\""
                                                                                                   ": 1, "
                                                                                                   "\"count"
                                                                                                   "\": "
                                                                                                   "9, "
                                                                                                   "\"teach"
                                                                                                   "er_"
                                                                                                   "right\""
                                                                                                   ": "
                                                                                                   "7, "
                                                                                                   "\"stude"
                                                                                                   "nt_"
                                                                                                   "right\""
                                                                                                   ": "
                                                                                                   "2}]},"
                                                                                                   "\"farth"
                                                                                                   "est"
                                                                                                   "\": "
                                                                                                   "[{"
                                                                                                   "\"sampl"
                                                                                                   "e\":"
                                                                                                   " 17, "
                                                                                                   "\"kl\":"
                                                                                                   " "
                                                                                                   "3.25, "
                                                                                                   "\"label"
                                                                                                   "\": "
                                                                                                   "0, "
                                                                                                   "\"slice"
                                                                                                   "\": "
                                                                                                   "\"" EVIL
                                                                                                   "\", "
                                                                                                   "\"teach"
                                                                                                   "er\""
                                                                                                   ": "
                                                                                                   "{\"clas"
                                                                                                   "s\":"
                                                                                                   " 0, "
                                                                                                   "\"confi"
                                                                                                   "denc"
                                                                                                   "e\": "
                                                                                                   "0.75}, "
                                                                                                   "\"stude"
                                                                                                   "nt\""
                                                                                                   ": "
                                                                                                   "{\"clas"
                                                                                                   "s\":"
                                                                                                   " 1, "
                                                                                                   "\"confi"
                                                                                                   "denc"
                                                                                                   "e\": "
                                                                                                   "0.5}}],"
                                                                                                   "\"laten"
                                                                                                   "cy\""
                                                                                                   ": "
                                                                                                   "[{"
                                                                                                   "\"batch"
                                                                                                   "\": "
                                                                                                   "8, "
                                                                                                   "\"threa"
                                                                                                   "ds\""
                                                                                                   ": 1, "
                                                                                                   "\"teach"
                                                                                                   "er\""
                                                                                                   ": "
                                                                                                   "{\"p50_"
                                                                                                   "us\":"
                                                                                                   " " E(1000, 900, 1100) ", \"p99_us\": " E(2000, 1900, 2100) "}, \"student\": {\"p50_us\": " E(
                                                                                                       100,
                                                                                                       90,
                                                                                                       110) ", "
                                                                                                            "\""
                                                                                                            "p9"
                                                                                                            "9_"
                                                                                                            "us"
                                                                                                            "\""
                                                                                                            ":"
                                                                                                            " " E(200, 190, 210) "}, \"ratio_p50\": " E(
                                                                                                                0.1,
                                                                                                                0.09,
                                                                                                                0.11) ", \"ratio_p99\": " E(0.1,
                                                                                                                                            0.08,
                                                                                                                                            0.12) "}],"
                                                                                                                                                  "\"verdict\": [{\"condition\": \"" EVIL
                                                                                                                                                  "\", \"holds\": false, \"reason\": \"" EVIL
                                                                                                                                                  "\"}]}";

static void test_distill_page__whole(void **state)
{
    static const char *const parts[] = {"95",
                                        "85.00&nbsp;%",
                                        "91.00&nbsp;%",
                                        "-5.00&nbsp;pt",
                                        "0.0123",
                                        ">Verdict<",
                                        "&lt;script&gt;",
                                        "svg",
                                        "reliability",
                                        "class=\"matrix\"",
                                        ">By class<",
                                        ">By slice<",
                                        "0.02",
                                        "<b class=\"lost\">7</b>",
                                        ">17</td>",
                                        "corrected for the 1 comparison of this table",
                                        "0.1×",
                                        "1 dress",
                                        "3.25",
                                        "0.125"};
    struct mlo_buf page = MLO_BUF_INIT;
    (void)state;
    page_of(WHOLE, &page);
    for (size_t i = 0; i < MLO_COUNT(parts); i++)
        assert_holds(&page, parts[i]);
    assert_null(strstr(mlo_buf_str(&page), "<script"));
    assert_null(strstr(mlo_buf_str(&page), "nan"));
    assert_null(strstr(mlo_buf_str(&page), " style=")); /* the policy of the service lets none in */
    mlo_buf_clear(&page);
}

/* What has no number says why, and a table that was cut counts all of its rows. */
static void test_distill_page__what_is_missing(void **state)
{
    struct mlo_buf page = MLO_BUF_INIT;
    (void)state;
    page_of(
        "{\"format\": \"mlopt-distill-1\", \"task\": \"classes\", \"classes\": 40, \"distances\": "
        "[{\"metric\": "
        "\"cosine\", \"unit\": \"1\", \"missing\": \"masked <b>\"}], \"missing\": [{\"metric\": "
        "\"distill.cosine\", \"why\": \"masked <b>\"}], \"confusion\": {\"samples\": 900, \"pairs\": 577, "
        "\"left_out\": 576, \"list\": [{\"teacher\": 1, \"student\": 2, \"count\": 5}]}}",
        &page);
    assert_holds(&page, ">Not measured<");
    assert_holds(&page, "<code>distill.cosine</code>");
    assert_holds(&page, "<small>masked &lt;b&gt;</small>");
    assert_holds(&page, "576 more");
    assert_null(strstr(mlo_buf_str(&page), "nan"));
    mlo_buf_clear(&page);
}

/* What is not there is not shown, and nothing that has another type than it should does harm. */
static void test_distill_page__little(void **state)
{
    static const char *const documents[] = {
        "{\"format\": \"mlopt-distill-1\"}",
        "{\"format\": \"mlopt-distill-1\", \"task\": \"values\", \"metrics\": 3, \"distances\": [1], "
        "\"calibration\": [], "
        "\"per_class\": {}, \"confusion\": 1, \"farthest\": [{}], \"latency\": [{}], \"verdict\": \"x\", "
        "\"classes\": -4}",
        "{\"format\": \"mlopt-distill-1\", \"classes\": 2, \"calibration\": {\"teacher\": 1}, \"confusion\": "
        "{\"list\": "
        "[{\"teacher\": 99, \"student\": -1, \"count\": 5}]}, \"per_class\": [{\"class\": -7}], "
        "\"per_slice\": [3]}",
    };
    (void)state;
    for (size_t i = 0; i < MLO_COUNT(documents); i++) {
        struct mlo_buf page = MLO_BUF_INIT;
        page_of(documents[i], &page);
        assert_holds(&page, "</html>");
        assert_null(strstr(mlo_buf_str(&page), "nan"));
        mlo_buf_clear(&page);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distill_page__whole),
        cmocka_unit_test(test_distill_page__what_is_missing),
        cmocka_unit_test(test_distill_page__little),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
