/* Submitting a recipe from the page: a built-in one, or text, with the datasets and settings that it takes.
 */
#include <string.h>

#include "api/web/web_impl.h"
#include "pipeline/steps/steps.h"

enum { SETTINGS_MAX = 64, OFFERED_MAX = 200 };

static const struct {
    const char *role, *label;
} ROLES[] = {
    {"calibrate", "Data to calibrate"}, {"select", "Data to select by"}, {"evaluate", "Data to evaluate"}};

/* What a field of the form was sent with; of a form that is shown first, the query's. */
static const char *sent(struct mlo_request *req, const char *name)
{
    const char *value =
        strcmp(req->method, "POST") == 0 ? mlo_request_form(req, name) : mlo_request_query(req, name);
    return value ? value : "";
}

static void choice(struct mlo_buf *out, const char *value, const char *text, const char *chosen)
{
    HTML(out, "<option value=\"%s\"", value);
    if (strcmp(value, chosen) == 0)
        HTML(out, " selected");
    HTML(out, ">%s</option>", text);
}

static void recipe_choice(struct mlo_request *req)
{
    size_t count;
    const char *const *names = mlo_recipe_builtin_names(&count);
    HTML(&req->out, "<label>Recipe<select name=\"recipe_name\">");
    for (size_t i = 0; i < count; i++)
        choice(&req->out, names[i], names[i],
               sent(req, "recipe_name")[0] ? sent(req, "recipe_name") : "int8-cpu");
    HTML(&req->out, "</select></label>");
}

static void data_choices(struct mlo_request *req, const json_t *datasets)
{
    const json_t *item;
    char name[40];
    size_t i;
    for (size_t r = 0; r < MLO_COUNT(ROLES); r++) {
        snprintf(name, sizeof name, "data_%s", ROLES[r].role);
        HTML(&req->out, "<label>%s<select name=\"%s\">", ROLES[r].label, name);
        choice(&req->out, "", "as the recipe says", sent(req, name));
        json_array_foreach((json_t *)datasets, i, item)
        {
            char text[256];
            snprintf(text, sizeof text, "%s/%s", mlo_text(item, "project"), mlo_text(item, "dataset"));
            choice(&req->out, text, text, sent(req, name));
        }
        HTML(&req->out, "</select></label>");
    }
}

/* The key makes a form that is sent twice one run. */
static void key_field(struct mlo_request *req)
{
    uint8_t random[12];
    char hex[sizeof random * 2 + 1];
    mlo_random_bytes(random, sizeof random);
    mlo_hex(random, sizeof random, hex);
    HTML(&req->out, "<input type=\"hidden\" name=\"key\" value=\"page-%s\">", hex);
}

/* `wrong`: what the form was refused for, shown above it; or NULL. */
static enum mlo_status draw_form(struct mlo_request *req, int http_status, const struct mlo_error *wrong,
                                 struct mlo_error *err)
{
    struct mlo_actor actor = mlo_request_actor(req);
    const char *p = mlo_request_param(req, "p"), *m = mlo_request_param(req, "m");
    struct mlo_page page = {.limit = OFFERED_MAX};
    struct mlo_buf *out = &req->out;
    json_t *versions = NULL, *datasets = NULL, *item;
    int64_t project, model;
    char number[24];
    size_t i;
    enum mlo_status status;
    MLO_TRY(mlo_request_model(req, &project, &model, err));
    MLO_TRY(mlo_version_list(req->conn, model, &page, &versions, err));
    MLO_TRY(mlo_dataset_list(req->conn, &actor, project, &page, &datasets, err));
    mlo_page_begin(req, "Submit a recipe", "models");
    HTML(out, "<p class=\"eyebrow\"><a href=\"/models/%s/%s\">%s/%s</a></p><h1>Submit a recipe</h1>", p, m, p,
         m);
    if (wrong) {
        HTML(out, "<div class=\"alert\" role=\"alert\">%s", wrong->message);
        if (wrong->where[0])
            HTML(out, "<br><small>Where: %s</small>", wrong->where);
        if (wrong->hint[0])
            HTML(out, "<br><small>%s</small>", wrong->hint);
        HTML(out, "</div>");
    }
    HTML(out, "<section class=\"panel\"><form class=\"tall\" method=\"post\" action=\"/submit/%s/%s\">", p,
         m);
    mlo_page_csrf_field(req);
    key_field(req);
    HTML(out, "<label>Version<select name=\"version\">");
    json_array_foreach(json_object_get(versions, "items"), i, item)
    {
        snprintf(number, sizeof number, "%lld", (long long)mlo_json_i64(item, "version", 0));
        choice(out, number, number, sent(req, "version"));
    }
    HTML(out, "</select></label>");
    recipe_choice(req);
    data_choices(req, json_object_get(datasets, "items"));
    HTML(out,
         "<label>Settings, one a line<textarea name=\"set\" rows=\"3\" spellcheck=\"false\" "
         "placeholder=\"quantize.calibrator=percentile\">\n%s</textarea></label><details%s><summary>A recipe "
         "of your own"
         "</summary><label>YAML, in place of the recipe above<textarea name=\"recipe\" rows=\"14\" "
         "spellcheck=\"false\">\n%s</textarea></label></details><p><button "
         "class=\"primary\">Submit</button></p>"
         "</form></section>",
         sent(req, "set"), sent(req, "recipe")[0] ? " open" : "", sent(req, "recipe"));
    MLO_TRY(mlo_page_end(req, http_status, err));
out:
    json_decref(versions);
    json_decref(datasets);
    return status;
}

enum mlo_status page_submit(struct mlo_request *req, struct mlo_error *err)
{
    return draw_form(req, 200, NULL, err);
}

/* {"set"}: the lines of the field, and the datasets that were chosen. */
static enum mlo_status read_settings(struct mlo_request *req, json_t *set, struct mlo_error *err)
{
    const char *at = sent(req, "set");
    char name[40];
    while (*at) {
        size_t length = strcspn(at, "\r\n");
        if (strspn(at, " \t") < length)
            json_array_append_new(set, json_stringn(at, length));
        at += length + strspn(at + length, "\r\n");
    }
    for (size_t r = 0; r < MLO_COUNT(ROLES); r++) {
        snprintf(name, sizeof name, "data_%s", ROLES[r].role);
        if (sent(req, name)[0])
            json_array_append_new(set, json_sprintf("data.%s=%s", ROLES[r].role, sent(req, name)));
    }
    if (json_array_size(set) <= SETTINGS_MAX)
        return MLO_OK;
    return mlo_error_set(err, MLO_ETOOBIG, "there are more than %d settings", SETTINGS_MAX);
}

/* What fails alone leaves a transaction in which its form can still be drawn. */
static enum mlo_status submit(struct mlo_request *req, json_t *body, int64_t *project, int64_t *run,
                              bool *goes_on, struct mlo_error *err)
{
    *goes_on = true;
    if (!req->conn || !mlo_db_in_transaction(req->conn))
        return mlo_view_submit(req, body, project, run, err);
    enum mlo_status status = mlo_db_part_begin(req->conn, err);
    if (status != MLO_OK)
        return status;
    status = mlo_view_submit(req, body, project, run, err);
    return mlo_db_part_end(req->conn, status, goes_on, err);
}

enum mlo_status page_submit_post(struct mlo_request *req, struct mlo_error *err)
{
    const char *own = sent(req, "recipe");
    struct mlo_error wrong = {0};
    json_t *set = json_array(), *body = NULL;
    int64_t project, run, version;
    bool goes_on;
    enum mlo_status status;
    MLO_TRY(mlo_page_csrf_check(req, err));
    if (!mlo_str_to_i64(sent(req, "version"), &version))
        version = 0;
    body = json_pack("{s:s, s:I, s:O, s:s}", "model", mlo_request_param(req, "m"), "version",
                     (json_int_t)version, "set", set, own[strspn(own, " \t\r\n")] ? "recipe" : "recipe_name",
                     own[strspn(own, " \t\r\n")] ? own : sent(req, "recipe_name"));
    if (!body) {
        status = mlo_error_set(err, MLO_EINVAL, "the form is no text (UTF-8)");
        goto out;
    }
    MLO_TRY(read_settings(req, set, err));
    status = submit(req, body, &project, &run, &goes_on, &wrong);
    if (status == MLO_OK) {
        MLO_TRY(mlo_reply_redirect(req, "/runs/%s/%lld", mlo_request_param(req, "p"), (long long)run));
    } else if (goes_on && (status == MLO_EINVAL || status == MLO_ENOTFOUND || status == MLO_EFORMAT ||
                           status == MLO_EUNSUPPORTED)) {
        /* what was typed is kept */
        MLO_TRY(draw_form(req, mlo_status_info(status)->http, &wrong, err));
    } else {
        if (err)
            *err = wrong;
    }
out:
    json_decref(set);
    json_decref(body);
    return status;
}
