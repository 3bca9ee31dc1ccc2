#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "api/cli/core/cli.h"

bool mlo_cli_colour(FILE *stream)
{
    const char *no = getenv("NO_COLOR");
    const char *term = getenv("TERM");
    return (!no || !*no) && term && strcmp(term, "dumb") != 0 && isatty(fileno(stream));
}

/* Why standard output could not be written, of the first time: the stream remembers only that it was so. */
static int stdout_errno;

bool mlo_cli_reader_gone(void)
{
    return stdout_errno == EPIPE;
}

enum mlo_status mlo_cli_print(struct mlo_error *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    errno = 0;
    bool written = vfprintf(stdout, fmt, args) >= 0 && fflush(stdout) == 0;
    va_end(args);
    if (written && !ferror(stdout))
        return MLO_OK;
    if (!stdout_errno)
        stdout_errno = errno ? errno : EIO;
    return mlo_error_errno(err, stdout_errno, "cannot write to standard output");
}

enum mlo_status mlo_cli_print_json(const json_t *value, struct mlo_error *err)
{
    if (!value)
        return mlo_error_nomem(err);
    char *text = json_dumps(value, JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    if (!text)
        return mlo_error_nomem(err);
    enum mlo_status status = mlo_cli_print(err, "%s\n", text);
    free(text);
    return status;
}

void mlo_cli_note(const struct mlo_cli *cli, const char *fmt, ...)
{
    if (cli->quiet)
        return;
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fputc('\n', stderr);
}

char *mlo_cli_duration(double us, char out[32])
{
    if (us < 1000)
        snprintf(out, 32, us < 100 ? "%.1f us" : "%.0f us", us);
    else if (us < 1e6)
        snprintf(out, 32, us < 1e4 ? "%.2f ms" : "%.1f ms", us / 1e3);
    else
        snprintf(out, 32, "%.2f s", us / 1e6);
    return out;
}

/* --- tables -----------------------------------------------------------------------------------------------
 */

enum { MAX_COLUMNS = 16 };

/* Columns on a terminal: bytes that do not continue a UTF-8 sequence. */
static size_t width_of(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* Room for one more row. */
static void make_room(struct mlo_table *t)
{
    size_t used = t->rows * t->columns;
    if (t->failed)
        return;
    if (used + t->columns > t->cap) {
        size_t cap = t->cap ? 2 * t->cap : 64;
        const char **cells = mlo_arena_calloc(t->arena, cap, sizeof *cells);
        if (!cells) {
            t->failed = true;
            return;
        }
        if (t->cells)
            memcpy(cells, t->cells, t->cap * sizeof *cells);
        t->cells = cells;
        t->cap = cap;
    }
}

static char *clean(struct mlo_table *t, const char *text)
{
    char *copy = mlo_arena_strdup(t->arena, text && *text ? text : "-");
    if (!copy)
        t->failed = true;
    for (char *p = copy; p && *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f) /* no escape codes from a server's texts */
            *p = ' ';
    return copy;
}

void mlo_table_init(struct mlo_table *t, const char *header)
{
    memset(t, 0, sizeof *t);
    t->arena = mlo_arena_new();
    t->failed = !t->arena;
    if (t->failed)
        return;
    t->columns = 1;
    for (const char *p = header; *p; p++)
        t->columns += *p == '|';
    make_room(t);
    const char *p = header;
    for (size_t c = 0; c < t->columns && !t->failed; c++) {
        size_t n = strcspn(p, "|");
        bool right = n > 0 && p[n - 1] == '>';
        t->cells[c] = mlo_arena_strndup(t->arena, p, n - right);
        t->failed = !t->cells[c];
        t->right |= right ? 1u << c : 0;
        p += n + (p[n] == '|');
    }
    t->rows = 1;
}

void mlo_table_row(struct mlo_table *t, ...)
{
    va_list args;
    va_start(args, t);
    make_room(t);
    for (size_t c = 0; c < t->columns && !t->failed; c++)
        t->cells[t->rows * t->columns + c] = clean(t, va_arg(args, const char *));
    va_end(args);
    if (!t->failed)
        t->rows++;
}

void mlo_table_render(const struct mlo_table *t, bool colour, struct mlo_buf *out)
{
    size_t widths[MAX_COLUMNS] = {0};
    if (t->failed || t->columns > MAX_COLUMNS)
        return;
    for (size_t r = 0; r < t->rows; r++)
        for (size_t c = 0; c < t->columns; c++)
            widths[c] = MLO_MAX(widths[c], width_of(t->cells[r * t->columns + c]));
    for (size_t r = 0; r < t->rows; r++) {
        if (colour && r == 0)
            mlo_buf_puts(out, "\033[1m");
        for (size_t c = 0; c < t->columns; c++) {
            const char *cell = t->cells[r * t->columns + c];
            size_t pad = widths[c] - width_of(cell);
            bool last = c + 1 == t->columns;
            if (t->right >> c & 1)
                mlo_buf_printf(out, "%*s%s", (int)pad, "", cell);
            else
                mlo_buf_printf(out, "%s%*s", cell, last ? 0 : (int)pad, "");
            if (!last)
                mlo_buf_puts(out, "  ");
        }
        if (colour && r == 0)
            mlo_buf_puts(out, "\033[0m");
        mlo_buf_putc(out, '\n');
    }
}

void mlo_table_clear(struct mlo_table *t)
{
    mlo_arena_free(t->arena);
    memset(t, 0, sizeof *t);
}

enum mlo_status mlo_table_print_take(struct mlo_table *t, struct mlo_error *err)
{
    struct mlo_buf text = MLO_BUF_INIT;
    mlo_table_render(t, mlo_cli_colour(stdout), &text);
    enum mlo_status status =
        t->failed || !mlo_buf_ok(&text) ? mlo_error_nomem(err) : mlo_cli_print(err, "%s", mlo_buf_str(&text));
    mlo_buf_clear(&text);
    mlo_table_clear(t);
    return status;
}

/* --- progress and questions -------------------------------------------------------------------- */

void mlo_cli_progress_start(struct mlo_cli_progress *p, const struct mlo_cli *cli, const char *what)
{
    memset(p, 0, sizeof *p);
    p->cli = cli;
    p->what = what;
    p->last_fraction = -1;
}

void mlo_cli_rate_add(struct mlo_cli_rate *r, uint64_t now_ns, double fraction)
{
    const double window_s = 5;
    if (!r->first_ns || fraction < r->last_fraction) {
        *r = (struct mlo_cli_rate){.first_ns = now_ns, .last_ns = now_ns, .last_fraction = fraction};
        return;
    }
    double gone_s = (double)(now_ns - r->last_ns) * 1e-9;
    if (gone_s < 0.2)
        return;
    double now_per_s = (fraction - r->last_fraction) / gone_s;
    double weight = r->per_s > 0 ? 1 - exp(-gone_s / window_s) : 1;
    r->per_s += weight * (now_per_s - r->per_s);
    r->last_ns = now_ns;
    r->last_fraction = fraction;
}

double mlo_cli_rate_left(const struct mlo_cli_rate *r)
{
    double left_s = r->per_s > 0 ? (1 - r->last_fraction) / r->per_s : -1;
    return r->last_ns - r->first_ns < 1000000000u || !(left_s < 1e6) ? -1 : left_s;
}

char *mlo_cli_left(double seconds, char out[32])
{
    double s = ceil(seconds);
    if (s < 60)
        snprintf(out, 32, "%.0f s", s);
    else if (s < 3600)
        snprintf(out, 32, "%.0f min %.0f s", floor(s / 60), fmod(s, 60));
    else
        snprintf(out, 32, "%.0f h %.0f min", floor(s / 3600), floor(fmod(s, 3600) / 60));
    return out;
}

static size_t terminal_columns(void)
{
    struct winsize size;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col ? size.ws_col : 80;
}

static void draw_bar(struct mlo_cli_progress *p, double fraction, const char *message, const char *left)
{
    enum { WIDTH = 24 };
    char bar[WIDTH + 1], line[512];
    size_t full = (size_t)(fraction * WIDTH + 0.5), columns = 0, n = 0, most = terminal_columns() - 1;
    for (size_t i = 0; i < WIDTH; i++)
        bar[i] = i < full ? '#' : '.';
    bar[WIDTH] = '\0';
    snprintf(line, sizeof line, "%.80s [%s] %3.0f%%%s%s%s  %.200s", p->what, bar, 100 * fraction,
             *left ? "  " : "", left, *left ? " left" : "", message);
    /* A line that wraps could not be drawn over; whole characters, and none that moves the cursor. */
    for (; line[n]; n++) {
        unsigned char c = (unsigned char)line[n];
        columns += (c & 0xc0) != 0x80;
        if (columns > most)
            break;
        if (c < 0x20 || c == 0x7f)
            line[n] = ' ';
    }
    fprintf(stderr, "\r\033[K%.*s", (int)n, line);
    fflush(stderr);
    p->drawn = true;
}

void mlo_cli_progress(void *arg, double fraction, const char *message)
{
    struct mlo_cli_progress *p = arg;
    enum mlo_cli_progress_mode mode = p->cli->progress_mode;
    if (p->cli->quiet || mode == MLO_PROGRESS_NONE)
        return;
    message = message ? message : "";
    fraction = fraction < 0 ? 0 : fraction > 1 ? 1 : fraction;
    uint64_t now = mlo_clock_ns();
    bool news = strcmp(p->last, message) != 0;
    mlo_cli_rate_add(&p->rate, now, fraction);
    bool bar = mode == MLO_PROGRESS_AUTO && isatty(STDERR_FILENO);
    uint64_t gap_ns = bar ? 50000000u : 500000000u;
    if (p->last_ns && now - p->last_ns < gap_ns && (bar || !news) && fraction < 1)
        return;
    if (!bar && mode != MLO_PROGRESS_JSON && !news && fraction - p->last_fraction < 0.1 && fraction < 1)
        return;
    if (fraction <= p->last_fraction && !news)
        return;
    p->last_ns = now;
    p->last_fraction = fraction;
    snprintf(p->last, sizeof p->last, "%s", message);
    double left_s = fraction < 1 ? mlo_cli_rate_left(&p->rate) : -1;
    char left[32] = "";
    if (left_s >= 0)
        mlo_cli_left(left_s, left);
    if (bar) {
        draw_bar(p, fraction, message, left);
    } else if (mode == MLO_PROGRESS_JSON) {
        json_t *line = json_pack("{s:s,s:f,s:s}", "what", p->what, "fraction", fraction, "message", message);
        if (line && left_s >= 0)
            json_object_set_new(line, "seconds_left", json_real(ceil(left_s)));
        char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
        if (text)
            fprintf(stderr, "%s\n", text);
        free(text);
        json_decref(line);
    } else if (mode == MLO_PROGRESS_PLAIN) {
        fprintf(stderr, "%s: %3.0f%% %s%s%s%s\n", p->what, 100 * fraction, message, *left ? ", " : "", left,
                *left ? " left" : "");
    }
}

void mlo_cli_progress_end(struct mlo_cli_progress *p)
{
    if (p->drawn)
        fputs("\r\033[K", stderr);
    p->drawn = false;
}

enum mlo_status mlo_cli_confirm(const struct mlo_cli *cli, struct mlo_error *err, const char *fmt, ...)
{
    char question[256];
    va_list args;
    va_start(args, fmt);
    vsnprintf(question, sizeof question, fmt, args);
    va_end(args);
    if (cli->no_input || !isatty(STDIN_FILENO) || !isatty(STDERR_FILENO)) {
        enum mlo_status status = mlo_error_set(
            err, MLO_EUSAGE, "%s This needs an answer, and there is no terminal to ask on", question);
        mlo_error_hint(err, "add --yes");
        return status;
    }
    fprintf(stderr, "%s [y/N] ", question);
    fflush(stderr);
    char answer[16] = "";
    if (fgets(answer, sizeof answer, stdin) && (answer[0] == 'y' || answer[0] == 'Y'))
        return MLO_OK;
    return mlo_error_set(err, MLO_EINVAL, "not confirmed; nothing was changed");
}
