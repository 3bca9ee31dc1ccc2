/* The scatter plot: which points are on the front, where they lie, and that odd numbers and texts do no harm.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/html/plot.h"
#include "tests/cm.h"

#define AT(x_, y_, name_)                                                                                    \
    {                                                                                                        \
        .x = x_, .y = y_, .x_low = NAN, .x_high = NAN, .y_low = NAN, .y_high = NAN, .name = name_            \
    }

static void draw(const struct mlo_plot_point *points, size_t count, struct mlo_buf *out)
{
    const struct mlo_plot plot = {.label = "a < b",
                                  .x_title = "p50, ms",
                                  .y_title = "top1, %",
                                  .more_y = true,
                                  .points = points,
                                  .count = count};
    mlo_plot_scatter(out, &plot);
    assert_true(mlo_buf_ok(out));
}

static size_t count_of(const struct mlo_buf *text, const char *part)
{
    size_t n = 0;
    for (const char *p = strstr(mlo_buf_str(text), part); p; p = strstr(p + 1, part))
        n++;
    return n;
}

static void test_plot__front_is_what_nothing_beats(void **state)
{
    (void)state;
    const struct mlo_plot_point points[] = {AT(1, 90, "a"),    AT(2, 95, "b"),      AT(3, 94, "beaten by b"),
                                            AT(2, 95, "as b"), AT(NAN, 99, "no x"), AT(1, 89, "beaten by a")};
    struct mlo_plot plot = {.more_y = true, .points = points, .count = MLO_COUNT(points)};
    bool front[MLO_COUNT(points)];
    assert_int_equal(mlo_plot_front(&plot, front), 3);
    const bool expected[] = {true, true, false, true, false, false};
    assert_memory_equal(front, expected, sizeof expected);
    plot.more_x = true; /* then the slow one wins as well */
    assert_int_equal(mlo_plot_front(&plot, front), 3);
    assert_true(front[1] && front[2] && front[3] && !front[0]);
    plot.more_x = plot.more_y = false;
    assert_int_equal(mlo_plot_front(&plot, front), 1);
    assert_true(front[5]);
}

/* The number behind an attribute, of the n-th circle. */
static double circle(const struct mlo_buf *text, size_t n, const char *attribute)
{
    const char *p = mlo_buf_str(text);
    for (size_t i = 0; i <= n; i++) {
        p = strstr(p, "<circle");
        assert_non_null(p);
        p++;
    }
    p = strstr(p, attribute);
    assert_non_null(p);
    return strtod(p + strlen(attribute), NULL);
}

static void test_plot__points_lie_where_their_numbers_say(void **state)
{
    (void)state;
    struct mlo_plot_point points[] = {AT(1, 10, "low"), AT(2, 20, "middle"), AT(3, 30, "high")};
    struct mlo_buf out = MLO_BUF_INIT;
    points[0].hollow = true;
    points[1].href = "/models/p/m";
    points[2].x_low = 2.5;
    points[2].x_high = 3.5;
    draw(points, 3, &out);
    double left = circle(&out, 0, "cx=\""), middle = circle(&out, 1, "cx=\""),
           right = circle(&out, 2, "cx=\"");
    assert_true(left < middle && fabs(right - middle - (middle - left)) < 0.2);
    double low = circle(&out, 0, "cy=\""), between = circle(&out, 1, "cy=\""),
           high = circle(&out, 2, "cy=\"");
    assert_true(low > between && fabs(low - between - (between - high)) < 0.2); /* upwards */
    assert_int_equal(count_of(&out, "class=\"interval\""), 1);
    assert_int_equal(count_of(&out, "point front hollow"), 1);
    assert_int_equal(count_of(&out, "<a href=\"/models/p/m\" aria-label=\"middle\">"), 1);
    assert_int_equal(count_of(&out, "role=\"group\""), 1);
    assert_int_equal(count_of(&out, "class=\"name\""), 3);
    assert_int_equal(count_of(&out, "path class=\"front\""), 1);
    assert_int_equal(count_of(&out, "p50, ms (less is better)"), 1);
    assert_int_equal(count_of(&out, "top1, % (more is better)"), 1);
    mlo_buf_clear(&out);
}

static void test_plot__texts_are_escaped(void **state)
{
    (void)state;
    struct mlo_plot_point points[] = {AT(1, 1, "<b>\"'&")};
    struct mlo_buf out = MLO_BUF_INIT;
    points[0].title = "<script>";
    points[0].href = "/a\"b";
    draw(points, 1, &out);
    assert_int_equal(count_of(&out, "<b>") + count_of(&out, "<script") + count_of(&out, "a\"b"), 0);
    assert_int_equal(count_of(&out, "aria-label=\"a &lt; b\""), 1);
    mlo_buf_clear(&out);
}

static void test_plot__odd_numbers_draw_something_finite_or_nothing(void **state)
{
    (void)state;
    static const double odd[][4] = {
        {0, 0, 0, 0},       {5, 5, 5, 5},        {-1, -1, -1, -1},       {1e308, 1e308, -1e308, -1e308},
        {NAN, 1, 1, NAN},   {INFINITY, 1, 1, 1}, {1e-320, 1, 2e-320, 1}, {1, 1e15, 1 + 1e-15, 1e15 + 1},
        {0, 1e-9, 1e9, -1},
    };
    for (size_t i = 0; i < MLO_COUNT(odd); i++) {
        const struct mlo_plot_point points[] = {AT(odd[i][0], odd[i][1], "one"),
                                                AT(odd[i][2], odd[i][3], "two")};
        struct mlo_buf out = MLO_BUF_INIT;
        draw(points, 2, &out);
        if (strstr(mlo_buf_str(&out), "nan") || strstr(mlo_buf_str(&out), "inf"))
            fail_msg("case %zu: %s", i, mlo_buf_str(&out));
        assert_true(out.len < 20000);
        mlo_buf_clear(&out);
    }
    struct mlo_buf out = MLO_BUF_INIT;
    draw(NULL, 0, &out);
    assert_int_equal(out.len, 0);
    mlo_buf_clear(&out);
}

static void test_plot__many_points_name_only_the_front(void **state)
{
    (void)state;
    enum { MANY = MLO_PLOT_POINTS + 40 };
    struct mlo_plot_point *points = calloc(MANY, sizeof *points);
    struct mlo_buf out = MLO_BUF_INIT;
    assert_non_null(points);
    for (int i = 0; i < MANY; i++) /* the first beats all others */
        points[i] = (struct mlo_plot_point)AT(1 + i, 1000 - i, i ? "other" : "best");
    draw(points, MANY, &out);
    assert_int_equal(count_of(&out, "<circle"), MLO_PLOT_POINTS);
    assert_int_equal(count_of(&out, ">best</text>"), 1);
    assert_int_equal(count_of(&out, ">other</text>"), 0);
    assert_int_equal(count_of(&out, "path class=\"front\""), 0);
    mlo_buf_clear(&out);
    free(points);
}

static void test_plot__a_front_by_more_than_two_axes_is_taken(void **state)
{
    (void)state;
    const struct mlo_plot_point points[] = {AT(1, 1, "best of two"), AT(2, 2, "small"),
                                            AT(NAN, 0, "nowhere")};
    const bool front[] = {false, true, true};
    struct mlo_plot plot = {.label = "l",
                            .x_title = "x",
                            .y_title = "y",
                            .points = points,
                            .count = MLO_COUNT(points),
                            .front = front};
    struct mlo_buf out = MLO_BUF_INIT;
    mlo_plot_scatter(&out, &plot);
    assert_true(mlo_buf_ok(&out));
    assert_int_equal(count_of(&out, "point front\"><title>small (on"), 1);
    assert_int_equal(count_of(&out, "point front"), 1);
    assert_int_equal(count_of(&out, "<circle"), 2);
    assert_int_equal(count_of(&out, "path class=\"front\""), 0); /* no steps: these two axes do not say it */
    mlo_buf_clear(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plot__front_is_what_nothing_beats),
        cmocka_unit_test(test_plot__points_lie_where_their_numbers_say),
        cmocka_unit_test(test_plot__texts_are_escaped),
        cmocka_unit_test(test_plot__odd_numbers_draw_something_finite_or_nothing),
        cmocka_unit_test(test_plot__many_points_name_only_the_front),
        cmocka_unit_test(test_plot__a_front_by_more_than_two_axes_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
