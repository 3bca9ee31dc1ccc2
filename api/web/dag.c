/* The jobs of a run and what they need of each other, as an SVG: a job stands right of those it needs. */
#include <stdlib.h>
#include <string.h>

#include "api/web/web_impl.h"

enum { JOBS_MAX = 64, BOX_W = 168, BOX_H = 46, GAP_X = 44, GAP_Y = 16, PAD = 10, NAME_MAX_CHARS = 21 };

struct job {
    const json_t *json;
    int64_t position;
    int column, row;
};

struct dag {
    struct job jobs[JOBS_MAX];
    int count, columns, rows;
};

static struct job *at_position(struct dag *d, int64_t position)
{
    for (int i = 0; i < d->count; i++)
        if (d->jobs[i].position == position)
            return &d->jobs[i];
    return NULL;
}

/* A job needs earlier ones only, so one walk from the first to the last is enough. */
static void place(struct dag *d)
{
    int used[JOBS_MAX] = {0};
    for (int i = 0; i < d->count; i++) {
        struct job *job = &d->jobs[i];
        const json_t *need;
        size_t n;
        json_array_foreach(json_object_get(job->json, "needs"), n, need)
        {
            const struct job *other = at_position(d, json_integer_value(need));
            if (other && other < job && other->column >= job->column)
                job->column = other->column + 1;
        }
        job->row = used[job->column]++;
        d->columns = MLO_MAX(d->columns, job->column + 1);
        d->rows = MLO_MAX(d->rows, job->row + 1);
    }
}

static int left_of(const struct job *job)
{
    return PAD + job->column * (BOX_W + GAP_X);
}

static int top_of(const struct job *job)
{
    return PAD + job->row * (BOX_H + GAP_Y);
}

/* The class of a state: one of those that the style sheet knows. */
static const char *look(const char *state)
{
    static const char *const known[] = {"blocked", "queued",    "running", "succeeded",
                                        "failed",  "cancelled", "reused"};
    for (size_t i = 0; i < MLO_COUNT(known); i++)
        if (strcmp(known[i], state) == 0)
            return known[i];
    return "queued";
}

static void draw_job(struct mlo_buf *out, const struct job *job)
{
    const char *name = mlo_json_str(job->json, "name", mlo_text(job->json, "step"));
    const char *state = mlo_json_bool(job->json, "reused", false) ? "reused" : mlo_text(job->json, "state");
    char shown[64];
    size_t bytes = 0, chars = 0;
    for (; name[bytes]; bytes++) { /* whole characters */
        chars += ((unsigned char)name[bytes] & 0xc0) != 0x80;
        if (chars > NAME_MAX_CHARS || bytes + 4 >= sizeof shown)
            break;
    }
    snprintf(shown, sizeof shown, "%.*s%s", (int)MLO_MIN(bytes, sizeof shown - 4), name,
             name[bytes] ? "…" : "");
    HTML(out, "<g class=\"job %s\"><title>%s: %s", look(state), name, state);
    if (mlo_text(job->json, "waits")[0])
        HTML(out, ", waits: %s", mlo_text(job->json, "waits"));
    HTML(out, "</title><rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" rx=\"6\"/>", left_of(job),
         top_of(job), BOX_W, BOX_H);
    HTML(out, "<text class=\"name\" x=\"%d\" y=\"%d\">%s</text>", left_of(job) + BOX_W / 2, top_of(job) + 20,
         shown);
    HTML(out, "<text class=\"state\" x=\"%d\" y=\"%d\">%s", left_of(job) + BOX_W / 2, top_of(job) + 36,
         state);
    if (strcmp(state, "running") == 0)
        HTML(out, " %.0f %%", 100 * mlo_json_f64(job->json, "progress", 0));
    HTML(out, "</text></g>");
}

static void draw_edges(struct mlo_buf *out, struct dag *d, const struct job *job)
{
    const json_t *need;
    size_t n;
    json_array_foreach(json_object_get(job->json, "needs"), n, need)
    {
        const struct job *other = at_position(d, json_integer_value(need));
        if (!other)
            continue;
        int x1 = left_of(other) + BOX_W, y1 = top_of(other) + BOX_H / 2, x2 = left_of(job),
            y2 = top_of(job) + BOX_H / 2;
        int bend = GAP_X / 2; /* within the gap in front of the job */
        HTML(out, "<path class=\"edge\" d=\"M%d %dC%d %d %d %d %d %d\" marker-end=\"url(#needs)\"/>", x1, y1,
             x2 - bend, y1, x2 - bend, y2, x2 - 2, y2);
    }
}

void mlo_piece_dag(struct mlo_buf *out, const json_t *jobs)
{
    struct dag *d;
    const json_t *item;
    size_t i;
    if (json_array_size(jobs) < 2 || json_array_size(jobs) > JOBS_MAX) /* the table has them all */
        return;
    d = calloc(1, sizeof *d);
    if (!d) {
        out->failed = true;
        return;
    }
    json_array_foreach((json_t *)jobs, i, item) d->jobs[d->count++] =
        (struct job){.json = item, .position = mlo_json_i64(item, "position", (int64_t)i)};
    place(d);
    int width = 2 * PAD + d->columns * (BOX_W + GAP_X) - GAP_X,
        height = 2 * PAD + d->rows * (BOX_H + GAP_Y) - GAP_Y;
    HTML(out,
         "<div class=\"scroll\" tabindex=\"0\"><svg class=\"dag\" role=\"img\" aria-label=\"Which job needs "
         "which; the "
         "table says what each "
         "does\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\"><defs><marker id=\"needs\" viewBox=\"0 0 8 "
         "8\" refX=\"7\" "
         "refY=\"4\" markerWidth=\"7\" markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 "
         "8z\"/></marker></defs>",
         width, height, width, height);
    for (int n = 0; n < d->count; n++)
        draw_edges(out, d, &d->jobs[n]);
    for (int n = 0; n < d->count; n++)
        draw_job(out, &d->jobs[n]);
    HTML(out, "</svg></div>");
    free(d);
}
