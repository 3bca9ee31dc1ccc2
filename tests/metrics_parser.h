/* A strict reader of what Prometheus reads, written from the format's description and not from our writer:
 * HELP and TYPE once and before the samples of a family, all its samples together, names and escapes as
 * allowed, no series twice, histograms cumulative with +Inf equal to _count; in OpenMetrics the end as well.
 * Fails the test. */
#ifndef MLO_TESTS_METRICS_PARSER_H
#define MLO_TESTS_METRICS_PARSER_H

#include "tests/pg_fixture.h"

#include <ctype.h>
#include <math.h>
#include <string.h>

struct metric {
    char name[96];
    char labels[512]; /* as written, without le */
    char series[640]; /* the whole of it */
    double le, value; /* le: NaN where there is none */
};

struct metric_set {
    struct metric *all;
    size_t count;
    char families[256][96];
    char types[256][16];
    size_t family_count;
    bool openmetrics;
};

static inline size_t metric_name_length(const char *at, bool colon)
{
    size_t n = 0;
    while (isalpha((unsigned char)at[n]) || at[n] == '_' || (colon && at[n] == ':') ||
           (n && isdigit((unsigned char)at[n])))
        n++;
    return n;
}

/* `{a="b",…}` at `at`, or nothing; what is behind it. */
static inline const char *metric_labels(const char *at, struct metric *m, const char *line)
{
    char seen[16][64];
    size_t count = 0;
    bool first = true;
    if (*at != '{')
        return at;
    at++;
    while (*at != '}') {
        char value[256];
        size_t n, v = 0;
        if (!first && *at++ != ',')
            fail_msg("no comma between labels: %.200s", line);
        n = metric_name_length(at, false);
        if (!n || n >= sizeof seen[0] || count == 16 || at[n] != '=' || at[n + 1] != '"')
            fail_msg("bad label: %.200s", line);
        snprintf(seen[count], sizeof seen[0], "%.*s", (int)n, at);
        for (size_t i = 0; i < count; i++)
            if (strcmp(seen[i], seen[count]) == 0)
                fail_msg("label twice: %.200s", line);
        const char *begin = at;
        for (at += n + 2; *at != '"'; at++) {
            if (!*at || *at == '\n' || v + 2 >= sizeof value)
                fail_msg("label without end: %.200s", line);
            if (*at == '\\' && at[1] != '\\' && at[1] != '"' && at[1] != 'n')
                fail_msg("bad escape: %.200s", line);
            if (*at == '\\')
                value[v++] = *at++;
            value[v++] = *at;
        }
        value[v] = '\0';
        at++;
        if (strcmp(seen[count], "le") == 0) {
            char *end;
            m->le = strtod(value, &end);
            assert_true(*end == '\0' && !isnan(m->le));
        } else {
            size_t used = strlen(m->labels);
            snprintf(m->labels + used, sizeof m->labels - used, "%s%.*s", used ? "," : "", (int)(at - begin),
                     begin);
        }
        count++;
        first = false;
    }
    if (first)
        fail_msg("empty braces: %.200s", line);
    return at + 1;
}

/* The family that a sample's name belongs to by its type. */
static inline bool metric_belongs(const struct metric_set *set, const char *name)
{
    const char *family = set->families[set->family_count - 1], *type = set->types[set->family_count - 1];
    size_t n = strlen(family);
    if (strncmp(name, family, n) != 0)
        return false;
    const char *suffix = name + n;
    if (strcmp(type, "histogram") == 0)
        return !strcmp(suffix, "_bucket") || !strcmp(suffix, "_sum") || !strcmp(suffix, "_count");
    if (set->openmetrics && strcmp(type, "counter") == 0)
        return strcmp(suffix, "_total") == 0;
    if (set->openmetrics && strcmp(type, "info") == 0)
        return strcmp(suffix, "_info") == 0;
    return *suffix == '\0';
}

static inline void metric_family(struct metric_set *set, const char *line, size_t length, bool *has_type)
{
    bool help = strncmp(line, "# HELP ", 7) == 0;
    char name[96] = "";
    size_t n = metric_name_length(line + 7, true);
    if ((!help && strncmp(line, "# TYPE ", 7) != 0) || !n || n >= sizeof name || line[7 + n] != ' ')
        fail_msg("neither HELP nor TYPE: %.*s", (int)length, line);
    snprintf(name, sizeof name, "%.*s", (int)n, line + 7);
    if (help) {
        for (size_t i = 0; i < set->family_count; i++)
            if (strcmp(set->families[i], name) == 0)
                fail_msg("family twice: %s", name);
        assert_true(set->family_count < MLO_COUNT(set->families));
        assert_true(length > 7 + n + 5); /* says something */
        snprintf(set->families[set->family_count++], sizeof name, "%s", name);
        *has_type = false;
        return;
    }
    assert_true(set->family_count && strcmp(set->families[set->family_count - 1], name) == 0 && !*has_type);
    char *type = set->types[set->family_count - 1];
    snprintf(type, sizeof set->types[0], "%.*s", (int)MLO_MIN(length - 8 - n, (size_t)15), line + 8 + n);
    bool counter = strcmp(type, "counter") == 0;
    if (!counter && strcmp(type, "gauge") && strcmp(type, "histogram") && strcmp(type, "info"))
        fail_msg("type %s", type);
    if (!set->openmetrics && counter != mlo_str_ends(name, "_total"))
        fail_msg("%s is a %s", name, type);
    if (mlo_str_ends(name, "_ms") || mlo_str_ends(name, "_us") || mlo_str_ends(name, "_kb"))
        fail_msg("%s: no base unit", name);
    *has_type = true;
}

static inline void metric_sample(struct metric_set *set, const char *line)
{
    struct metric *m;
    size_t n = metric_name_length(line, true);
    if (set->count % 256 == 0)
        set->all = realloc(set->all, (set->count + 256) * sizeof *set->all);
    m = &set->all[set->count++];
    *m = (struct metric){.le = NAN};
    snprintf(m->name, sizeof m->name, "%.*s", (int)n, line);
    if (!n || n >= sizeof m->name || !metric_belongs(set, m->name))
        fail_msg("a sample outside of its family: %.200s", line);
    const char *at = metric_labels(line + n, m, line);
    char *end;
    if (*at != ' ')
        fail_msg("no blank before the value: %.200s", line);
    m->value = strtod(at + 1, &end);
    if (*end != '\n' || end == at + 1)
        fail_msg("bad value: %.200s", line);
    snprintf(m->series, sizeof m->series, "%.*s", (int)(at - line), line);
    const char *type = set->types[set->family_count - 1];
    if ((strcmp(type, "counter") == 0 || strcmp(type, "histogram") == 0) && !(m->value >= 0))
        fail_msg("less than nothing: %.200s", line);
    assert_true(!isnan(m->le) == mlo_str_ends(m->name, "_bucket"));
}

static inline int metric_compare(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static inline void metric_check_twice(const struct metric_set *set)
{
    const char **series = calloc(set->count, sizeof *series);
    for (size_t i = 0; i < set->count; i++)
        series[i] = set->all[i].series;
    qsort(series, set->count, sizeof *series, metric_compare);
    for (size_t i = 1; i < set->count; i++)
        if (strcmp(series[i - 1], series[i]) == 0)
            fail_msg("series twice: %s", series[i]);
    free(series);
}

/* Buckets of a histogram follow each other and are followed by its sum and count. */
static inline void metric_check_histograms(const struct metric_set *set)
{
    for (size_t i = 0; i < set->count;) {
        const struct metric *m = &set->all[i];
        double below = 0, le = -INFINITY;
        if (isnan(m->le)) {
            i++;
            continue;
        }
        for (; i < set->count && !isnan(set->all[i].le) && strcmp(set->all[i].name, m->name) == 0 &&
               strcmp(set->all[i].labels, m->labels) == 0;
             i++) {
            if (set->all[i].le <= le || set->all[i].value < below)
                fail_msg("not cumulative: %s", set->all[i].series);
            le = set->all[i].le;
            below = set->all[i].value;
        }
        if (!isinf(le) || i + 1 >= set->count || !mlo_str_ends(set->all[i].name, "_sum") ||
            !mlo_str_ends(set->all[i + 1].name, "_count") || strcmp(set->all[i + 1].labels, m->labels) != 0 ||
            set->all[i + 1].value != below)
            fail_msg("the end of a histogram: %s", m->series);
        i += 2;
    }
}

/* Reads all of it; free set->all. */
static inline void metric_parse(const char *text, bool openmetrics, struct metric_set *set)
{
    bool has_type = true, ended = false;
    *set = (struct metric_set){.openmetrics = openmetrics};
    while (*text) {
        const char *end = strchr(text, '\n');
        if (!end || end == text || ended)
            fail_msg("a line without end, an empty one, or one behind the end: %.100s", text);
        if (openmetrics && strncmp(text, "# EOF\n", 6) == 0)
            ended = true;
        else if (*text == '#')
            metric_family(set, text, (size_t)(end - text), &has_type);
        else if (!has_type)
            fail_msg("a sample before its TYPE: %.200s", text);
        else
            metric_sample(set, text);
        text = end + 1;
    }
    assert_true(ended == openmetrics);
    metric_check_twice(set);
    metric_check_histograms(set);
}

/* The value of a series as it is written, NaN: there is none. */
static inline double metric_get(const struct metric_set *set, const char *series)
{
    for (size_t i = 0; i < set->count; i++)
        if (strcmp(set->all[i].series, series) == 0)
            return set->all[i].value;
    return NAN;
}

#endif
