#include "base/metrics.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/accept.h"
#include "base/fs.h"
#include "base/macros.h"

bool mlo_metrics_accept(const char *accept)
{
    double open = mlo_accept_quality(accept, "application/openmetrics-text");
    return open > 0 && open >= mlo_accept_quality(accept, "text/plain");
}

static const char *const TYPES[] = {[MLO_METRIC_GAUGE] = "gauge",
                                    [MLO_METRIC_COUNTER] = "counter",
                                    [MLO_METRIC_HISTOGRAM] = "histogram",
                                    [MLO_METRIC_INFO] = "info"};

void mlo_metrics_family(struct mlo_metrics *m, enum mlo_metric_type type, const char *name, const char *help)
{
    const char *word = type == MLO_METRIC_INFO && !m->openmetrics ? "gauge" : TYPES[type];
    const char *suffix = type == MLO_METRIC_COUNTER ? "_total" : type == MLO_METRIC_INFO ? "_info" : "";
    int length = (int)strlen(name);
    if (m->openmetrics && mlo_str_ends(name, suffix))
        length -= (int)strlen(suffix);
    m->name = name;
    mlo_buf_printf(m->out, "# HELP %.*s ", length, name);
    for (; *help; help++) {
        if (*help == '\\' || *help == '\n')
            mlo_buf_puts(m->out, *help == '\n' ? "\\n" : "\\\\");
        else
            mlo_buf_putc(m->out, *help);
    }
    mlo_buf_printf(m->out, "\n# TYPE %.*s %s\n", length, name, word);
}

static void number(struct mlo_buf *out, double value)
{
    if (isnan(value))
        mlo_buf_puts(out, "NaN");
    else if (isinf(value))
        mlo_buf_puts(out, value > 0 ? "+Inf" : "-Inf");
    else if (value == floor(value) && fabs(value) < 9007199254740992.0)
        mlo_buf_printf(out, "%.0f", value);
    else
        mlo_buf_printf(out, "%.15g", value);
}

static void label(struct mlo_buf *out, bool *first, const char *name, const char *value)
{
    mlo_buf_printf(out, "%c%s=\"", *first ? '{' : ',', name);
    *first = false;
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            mlo_buf_putc(out, '\\');
        if (*value == '\n')
            mlo_buf_puts(out, "\\n");
        else
            mlo_buf_putc(out, *value);
    }
    mlo_buf_putc(out, '"');
}

/* One line; `le` is the bound of a bucket, or NULL. */
static void sample(struct mlo_metrics *m, const char *suffix, const char *le, double value, va_list labels)
{
    bool first = true;
    mlo_buf_printf(m->out, "%s%s", m->name, suffix);
    for (const char *const *pair = m->common; pair && pair[0]; pair += 2)
        label(m->out, &first, pair[0], pair[1]);
    for (const char *name; (name = va_arg(labels, const char *));)
        label(m->out, &first, name, va_arg(labels, const char *));
    if (le)
        label(m->out, &first, "le", le);
    mlo_buf_puts(m->out, first ? " " : "} ");
    number(m->out, value);
    mlo_buf_putc(m->out, '\n');
}

void mlo_metrics_value(struct mlo_metrics *m, double value, ...)
{
    va_list labels;
    va_start(labels, value);
    sample(m, "", NULL, value, labels);
    va_end(labels);
}

void mlo_metrics_histogram(struct mlo_metrics *m, const struct mlo_metrics_histogram *h, ...)
{
    va_list labels, again;
    uint64_t below = 0;
    va_start(labels, h);
    for (size_t i = 0; i <= h->count; i++) {
        char le[32];
        below += h->counts[i];
        /* "1.0", as OpenMetrics wants it: the same series in both formats */
        if (i == h->count)
            snprintf(le, sizeof le, "+Inf");
        else
            snprintf(le, sizeof le, h->bounds[i] == floor(h->bounds[i]) ? "%.1f" : "%.15g", h->bounds[i]);
        va_copy(again, labels);
        sample(m, "_bucket", le, (double)below, again);
        va_end(again);
    }
    va_copy(again, labels);
    sample(m, "_sum", NULL, h->sum, again);
    va_end(again);
    va_copy(again, labels);
    sample(m, "_count", NULL, (double)below, again);
    va_end(again);
    va_end(labels);
}

void mlo_metrics_end(struct mlo_metrics *m)
{
    if (m->openmetrics)
        mlo_buf_puts(m->out, "# EOF\n");
}

/* --- this process -------------------------------------------------------------------------------- */

enum { S_UTIME = 13, S_STIME = 14, S_THREADS = 19, S_START = 21, S_VSIZE = 22, S_RSS = 23, S_FIELDS = 24 };

/* The beginning of a file of /proc, which says nothing of its size. */
static bool read_proc(const char *path, char *out, size_t size)
{
    size_t got = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool read = fd >= 0 && mlo_fs_read_full(fd, out, size - 1, &got);
    if (fd >= 0)
        close(fd);
    out[got] = '\0';
    return read;
}

/* Fields of /proc/self/stat by proc(5), counted from 0; they are numbers behind the name in brackets. */
static bool read_stat(double out[S_FIELDS])
{
    char text[2048];
    const char *at = read_proc("/proc/self/stat", text, sizeof text) ? strrchr(text, ')') : NULL;
    for (int i = 2; at && i < S_FIELDS; i++) {
        at = strchr(at, ' ');
        if (!at)
            break;
        at++;
        out[i] = strtod(at, NULL);
    }
    return at != NULL;
}

/* Seconds since 1970 when the machine was started. */
static double boot_time(void)
{
    char text[65536]; /* "btime" stands behind a line a CPU */
    const char *line = read_proc("/proc/stat", text, sizeof text) ? strstr(text, "\nbtime ") : NULL;
    return line ? strtod(line + 7, NULL) : NAN;
}

static double open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    double count = 0;
    for (struct dirent *entry; dir && (entry = readdir(dir));)
        count += entry->d_name[0] != '.';
    if (dir)
        closedir(dir);
    return dir ? count - 1 : NAN; /* without the folder's own */
}

void mlo_metrics_process(struct mlo_metrics *m, const char *prefix)
{
    double stat[S_FIELDS] = {0};
    struct rlimit files = {0};
    long tick = sysconf(_SC_CLK_TCK);
    char name[96];
    if (!read_stat(stat) || tick <= 0)
        return;
    getrlimit(RLIMIT_NOFILE, &files);
    const struct {
        const char *name, *help;
        enum mlo_metric_type type;
        double value;
    } rows[] = {
        {"cpu_seconds_total", "CPU time used by this process.", MLO_METRIC_COUNTER,
         (stat[S_UTIME] + stat[S_STIME]) / (double)tick},
        {"resident_memory_bytes", "Memory of this process that is in RAM.", MLO_METRIC_GAUGE,
         stat[S_RSS] * (double)sysconf(_SC_PAGESIZE)},
        {"virtual_memory_bytes", "Address space of this process.", MLO_METRIC_GAUGE, stat[S_VSIZE]},
        {"open_fds", "Open file descriptors.", MLO_METRIC_GAUGE, open_files()},
        {"max_fds", "File descriptors that may be open.", MLO_METRIC_GAUGE,
         files.rlim_cur == RLIM_INFINITY ? INFINITY : (double)files.rlim_cur},
        {"threads", "Threads.", MLO_METRIC_GAUGE, stat[S_THREADS]},
        {"start_time_seconds", "When this process began, since 1970.", MLO_METRIC_GAUGE,
         boot_time() + stat[S_START] / (double)tick},
    };
    for (size_t i = 0; i < MLO_COUNT(rows); i++) {
        snprintf(name, sizeof name, "%s%s", prefix, rows[i].name);
        mlo_metrics_family(m, rows[i].type, name, rows[i].help);
        mlo_metrics_value(m, rows[i].value, NULL);
    }
}
