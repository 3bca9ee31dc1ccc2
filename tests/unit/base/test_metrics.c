/* The text that Prometheus reads: names, escapes, histograms, and which of the two formats is asked for. */
#include "tests/cm.h"

#include <math.h>
#include <string.h>

#include "base/metrics.h"

static void test_metrics__text_is_what_prometheus_reads(void **state)
{
    struct mlo_buf out = MLO_BUF_INIT;
    struct mlo_metrics m = {.out = &out};
    static const double bounds[] = {0.1, 1, 2.5};
    static const uint64_t counts[] = {2, 0, 3, 1};
    const struct mlo_metrics_histogram h = {.bounds = bounds, .count = 3, .counts = counts, .sum = 12.25};
    MLO_UNUSED(state);
    mlo_metrics_family(&m, MLO_METRIC_COUNTER, "a_total", "Back\\slash and\nline.");
    mlo_metrics_value(&m, 9007199254740991.0, "k", "a\"b\\c\nd", "l", "", NULL);
    mlo_metrics_family(&m, MLO_METRIC_GAUGE, "g", "G.");
    mlo_metrics_value(&m, 0.1, NULL);
    mlo_metrics_value(&m, NAN, "x", "1", NULL);
    mlo_metrics_value(&m, INFINITY, "x", "2", NULL);
    mlo_metrics_family(&m, MLO_METRIC_INFO, "b_info", "B.");
    mlo_metrics_value(&m, 1, "version", "2", NULL);
    mlo_metrics_family(&m, MLO_METRIC_HISTOGRAM, "h_seconds", "H.");
    mlo_metrics_histogram(&m, &h, "s", "t", NULL);
    mlo_metrics_end(&m);
    assert_string_equal(mlo_buf_str(&out),
                        "# HELP a_total Back\\\\slash and\\nline.\n"
                        "# TYPE a_total counter\n"
                        "a_total{k=\"a\\\"b\\\\c\\nd\",l=\"\"} 9007199254740991\n"
                        "# HELP g G.\n# TYPE g gauge\ng 0.1\ng{x=\"1\"} NaN\ng{x=\"2\"} +Inf\n"
                        "# HELP b_info B.\n# TYPE b_info gauge\nb_info{version=\"2\"} 1\n"
                        "# HELP h_seconds H.\n# TYPE h_seconds histogram\n"
                        "h_seconds_bucket{s=\"t\",le=\"0.1\"} 2\n"
                        "h_seconds_bucket{s=\"t\",le=\"1.0\"} 2\n"
                        "h_seconds_bucket{s=\"t\",le=\"2.5\"} 5\n"
                        "h_seconds_bucket{s=\"t\",le=\"+Inf\"} 6\n"
                        "h_seconds_sum{s=\"t\"} 12.25\n"
                        "h_seconds_count{s=\"t\"} 6\n");
    mlo_buf_clear(&out);
}

static void test_metrics__openmetrics_names_families_without_suffix(void **state)
{
    struct mlo_buf out = MLO_BUF_INIT;
    static const char *const common[] = {"worker", "w1", NULL};
    struct mlo_metrics m = {.out = &out, .openmetrics = true, .common = common};
    MLO_UNUSED(state);
    mlo_metrics_family(&m, MLO_METRIC_COUNTER, "a_total", "A.");
    mlo_metrics_value(&m, 3, NULL);
    mlo_metrics_family(&m, MLO_METRIC_INFO, "b_info", "B.");
    mlo_metrics_value(&m, 1, "v", "2", NULL);
    mlo_metrics_end(&m);
    assert_string_equal(mlo_buf_str(&out), "# HELP a A.\n# TYPE a counter\na_total{worker=\"w1\"} 3\n"
                                           "# HELP b B.\n# TYPE b info\nb_info{worker=\"w1\",v=\"2\"} 1\n"
                                           "# EOF\n");
    mlo_buf_clear(&out);
}

static void test_metrics__the_accept_header_decides(void **state)
{
    static const struct {
        const char *accept;
        bool open;
    } cases[] = {
        {NULL, false},
        {"", false},
        {"*/*", false},
        {"text/plain", false},
        {"application/openmetrics-text", true},
        {"application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5,*/*;q=0.1", true},
        {"application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", true},
        {"text/plain;q=0.9, application/openmetrics-text; version=1.0.0; q=0.2", false},
        {"application/openmetrics-text;q=0", false},
        {"application/openmetrics-textual", false},
        {"text/html,;;;,application/openmetrics-text", true},
        {"application/openmetrics-text;", true},
    };
    MLO_UNUSED(state);
    for (size_t i = 0; i < MLO_COUNT(cases); i++)
        if (mlo_metrics_accept(cases[i].accept) != cases[i].open)
            fail_msg("%s", cases[i].accept);
}

static void test_metrics__this_process_is_measured(void **state)
{
    struct mlo_buf out = MLO_BUF_INIT;
    struct mlo_metrics m = {.out = &out};
    MLO_UNUSED(state);
    mlo_metrics_process(&m, "process_");
    static const struct {
        const char *name;
        double low, high;
    } rows[] = {
        {"\nprocess_resident_memory_bytes ", 100e3, 1e12}, {"\nprocess_open_fds ", 3, 1e4},
        {"\nprocess_start_time_seconds ", 1.7e9, 1e10},    {"\nprocess_threads ", 1, 100},
        {"\nprocess_cpu_seconds_total ", 0, 1e4},          {"\nprocess_virtual_memory_bytes ", 1e6, 1e16}};
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        const char *at = strstr(mlo_buf_str(&out), rows[i].name);
        double value = at ? strtod(at + strlen(rows[i].name), NULL) : NAN;
        if (!(value >= rows[i].low && value <= rows[i].high))
            fail_msg("%s%g in: %s", rows[i].name, value, mlo_buf_str(&out));
    }
    mlo_buf_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_metrics__text_is_what_prometheus_reads),
        cmocka_unit_test(test_metrics__openmetrics_names_families_without_suffix),
        cmocka_unit_test(test_metrics__the_accept_header_decides),
        cmocka_unit_test(test_metrics__this_process_is_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
