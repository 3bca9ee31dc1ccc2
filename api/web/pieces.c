/* The small things that pages are made of. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "api/html/load.h"
#include "api/web/web_impl.h"

#define DASH "<span class=\"muted\">–</span>"

void mlo_piece_time(struct mlo_buf *out, const char *time)
{
    if (!time || strlen(time) < 19) {
        HTML(out, DASH);
        return;
    }
    char day[11], clock[9];
    snprintf(day, sizeof day, "%.10s", time);
    snprintf(clock, sizeof clock, "%.8s", time + 11);
    HTML(out, "<time datetime=\"%s\">%s <span>%s</span></time>", time, day, clock);
}

void mlo_piece_digest(struct mlo_buf *out, const char *digest)
{
    const char *hex = digest && mlo_str_starts(digest, "sha256:") ? digest + 7 : digest;
    char head[13];
    if (!hex || !hex[0]) {
        HTML(out, DASH);
        return;
    }
    snprintf(head, sizeof head, "%s", hex);
    HTML(out, "<code title=\"%s\">%s</code>", digest, head);
}

void mlo_piece_state(struct mlo_buf *out, const char *state)
{
    static const struct {
        const char *state, *look;
    } looks[] = {{"succeeded", "good"}, {"production", "good"}, {"active", "good"},   {"running", "busy"},
                 {"staging", "warn"},   {"failed", "bad"},      {"lost", "bad"},      {"rollback", "warn"},
                 {"reused", "good"},    {"promotion", "good"},  {"cancelled", "off"}, {"paused", "warn"},
                 {"draining", "warn"},  {"stopped", "off"},     {"blocked", "off"}};
    const char *look = "plain";
    for (size_t i = 0; i < MLO_COUNT(looks); i++)
        if (strcmp(looks[i].state, state) == 0)
            look = looks[i].look;
    HTML(out, "<span class=\"badge %s\">%s</span>", look, state);
}

void mlo_piece_size(struct mlo_buf *out, const json_t *bytes)
{
    char text[32];
    if (json_is_integer(bytes))
        HTML(out, "%s", mlo_str_size((uint64_t)json_integer_value(bytes), text));
    else
        HTML(out, DASH);
}

void mlo_piece_us(struct mlo_buf *out, double us)
{
    if (!(us >= 0))
        HTML(out, DASH);
    else if (us < 10)
        HTML(out, "%.1f&nbsp;µs", us);
    else if (us < 1000)
        HTML(out, "%.0f&nbsp;µs", us);
    else if (us < 1e6)
        HTML(out, "%.2f&nbsp;ms", us / 1e3);
    else
        HTML(out, "%.2f&nbsp;s", us / 1e6);
}

void mlo_piece_accuracy(struct mlo_buf *out, const json_t *accuracy)
{
    if (!json_is_object(accuracy)) {
        HTML(out, DASH);
        return;
    }
    const char *metric = mlo_text(accuracy, "metric");
    bool share = mlo_str_starts(metric, "top");
    double value = mlo_json_f64(accuracy, "value", NAN), low = mlo_json_f64(accuracy, "low", NAN),
           high = mlo_json_f64(accuracy, "high", NAN);
    if (share)
        HTML(out, "%.2f&nbsp;%%", value * 100);
    else
        HTML(out, "%s %.5g", metric, value);
    if (isnan(low) || isnan(high))
        return;
    if (share)
        HTML(out, " <small>%.2f–%.2f</small>", low * 100, high * 100);
    else
        HTML(out, " <small>%.5g–%.5g</small>", low, high);
}

void mlo_piece_model(struct mlo_buf *out, const char *project, const char *model)
{
    HTML(out, "<a href=\"/models/%s/%s\">%s/<b>%s</b></a>", project, model, project, model);
}

void mlo_piece_variants(struct mlo_buf *out, const json_t *variants, bool digests)
{
    const json_t *item;
    size_t i;
    HTML(out, "<span class=\"pairs\">");
    json_array_foreach((json_t *)variants, i, item)
    {
        HTML(out, "<span><span class=\"target\">%s</span> %s", mlo_text(item, "target"),
             mlo_text(item, "variant"));
        if (digests) {
            HTML(out, " ");
            mlo_piece_digest(out, mlo_text(item, "artifact"));
        }
        HTML(out, "</span>");
    }
    HTML(out, "</span>");
}

void mlo_piece_progress(struct mlo_buf *out, double fraction)
{
    double percent = fraction >= 0 ? fmin(fraction, 1) * 100 : 0;
    HTML(out, "<span class=\"progress\"><progress max=\"100\" value=\"%.0f\"></progress> %.0f&nbsp;%%</span>",
         percent, percent);
}

void mlo_piece_json(struct mlo_buf *out, const json_t *value, size_t most)
{
    if (!value || json_is_null(value) || (json_is_object(value) && json_object_size(value) == 0)) {
        HTML(out, DASH);
        return;
    }
    char *text = json_dumps(value, JSON_INDENT(1) | JSON_ENCODE_ANY | JSON_SORT_KEYS);
    bool cut = text && strlen(text) > most;
    if (cut) {
        while (((unsigned char)text[most] & 0xc0) == 0x80) /* not within a character */
            most--;
        text[most] = '\0';
    }
    if (text)
        HTML(out, "<pre>%s%s</pre>", text, cut ? "\n…" : "");
    free(text);
}

void mlo_piece_params(struct mlo_buf *out, const json_t *params)
{
    char load[MLO_LOAD_TEXT_SIZE];
    const char *key;
    json_t *value;
    bool more = *mlo_load_text(params, load) != '\0';
    HTML(out, "%s", load);
    json_object_foreach((json_t *)params, key, value)
    {
        if (strcmp(key, "batch") == 0 || strcmp(key, "threads") == 0)
            continue;
        HTML(out, "%s%s ", more ? ", " : "", key);
        if (json_is_string(value) && mlo_str_starts(json_string_value(value), "sha256:")) {
            mlo_piece_digest(out, json_string_value(value));
        } else {
            char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS);
            HTML(out, "%s", json_is_string(value) ? json_string_value(value) : text ? text : "");
            free(text);
        }
        more = true;
    }
}

size_t mlo_page_from(const struct mlo_request *req, const json_t *items)
{
    const char *cursor = mlo_request_query(req, "cursor");
    int64_t from = 0;
    if (!cursor || !mlo_str_to_i64(cursor, &from) || from < 0 || (size_t)from > json_array_size(items))
        from = 0;
    return (size_t)from;
}

json_t *mlo_page_part(const struct mlo_request *req, const json_t *items, size_t most)
{
    return mlo_page_part_of(items, mlo_page_from(req, items), most);
}

json_t *mlo_page_part_of(const json_t *items, size_t from, size_t most)
{
    json_t *part = json_array(), *next = json_null();
    char text[24];
    size_t end = MLO_MIN(from + most, json_array_size(items));
    for (size_t i = from; i < end; i++)
        json_array_append(part, json_array_get(items, i));
    if (end < json_array_size(items)) {
        snprintf(text, sizeof text, "%zu", end);
        next = json_string(text);
    }
    return json_pack("{s:o, s:o}", "items", part, "next", next);
}

static void hidden(struct mlo_buf *out, const char *name, const char *value)
{
    if (value)
        HTML(out, "<input type=\"hidden\" name=\"%s\" value=\"%s\">", name, value);
}

void mlo_piece_next_of(struct mlo_request *req, const json_t *list, const char *path, const char *project)
{
    static const char *const kept[] = {"q",      "version", "stage", "state", "who",  "action",
                                       "object", "filter",  "order", "since", "until"};
    const char *next = mlo_json_str(list, "next", NULL);
    if (!next)
        return;
    HTML(&req->out,
         "<form class=\"more\" method=\"get\" action=\"%s\"><input type=\"hidden\" name=\"cursor\" "
         "value=\"%s\">",
         path, next);
    for (size_t i = 0; i < MLO_COUNT(kept); i++)
        hidden(&req->out, kept[i], mlo_request_query(req, kept[i]));
    hidden(&req->out, "project", project);
    HTML(&req->out, "<button>More</button></form>");
}

void mlo_piece_next(struct mlo_request *req, const json_t *list)
{
    mlo_piece_next_of(req, list, req->path, mlo_request_query(req, "project"));
}
