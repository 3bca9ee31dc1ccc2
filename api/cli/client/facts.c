/* What is said of a version when it is pushed: the options that make its "facts". */
#include <string.h>

#include "api/cli/client/client.h"

/* KEY=VALUE of an option into KEY and VALUE; without '=' the whole is the key and *value NULL. */
static enum mlo_status split(const char *option, const char *pair, char key[104], const char **value,
                             struct mlo_error *err)
{
    const char *eq = strchr(pair, '=');
    size_t n = eq ? (size_t)(eq - pair) : strlen(pair);
    if (n == 0 || n > 100)
        return mlo_error_set(err, MLO_EUSAGE, "--%s '%.120s': a name has 1 to 100 characters", option, pair);
    memcpy(key, pair, n);
    key[n] = '\0';
    *value = eq ? eq + 1 : NULL;
    return MLO_OK;
}

/* A number, true or false where it reads as one; else a text. In double quotes it is a text, whatever it is.
 */
static json_t *param_value(const char *text)
{
    int64_t whole;
    double real;
    size_t n = strlen(text);
    if (n >= 2 && text[0] == '"' && text[n - 1] == '"')
        return json_stringn(text + 1, n - 2);
    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        return json_boolean(text[0] == 't');
    if (mlo_str_to_i64(text, &whole))
        return json_integer(whole);
    return mlo_str_to_f64(text, &real) ? json_real(real) : json_string(text);
}

static json_t *metric_value(const char *text)
{
    double value;
    return mlo_str_to_f64(text, &value) ? json_real(value) : NULL;
}

static json_t *tag_value(const char *text)
{
    return json_string(text);
}

static const struct {
    const char *option, *member;
    json_t *(*value)(const char *text);
    bool bare; /* KEY alone is allowed: its value is empty */
    const char *needs;
} NAMED[] = {
    {"param", "params", param_value, false, "KEY=VALUE in UTF-8"},
    {"metric", "metrics", metric_value, false, "KEY=NUMBER, a finite one"},
    {"tag", "tags", tag_value, true, "KEY or KEY=VALUE in UTF-8"},
};

static enum mlo_status add_named(const struct mlo_cli *cli, size_t row, json_t *facts, struct mlo_error *err)
{
    const char *pair, *text;
    char key[104];
    json_t *member = json_object_get(facts, NAMED[row].member);
    if (!mlo_cli_opt_at(cli, NAMED[row].option, 0))
        return MLO_OK;
    if (!json_is_object(member)) { /* what a file says that is none is refused by the server, not here */
        member = json_object();
        json_object_set_new(facts, NAMED[row].member, member);
    }
    for (size_t i = 0; (pair = mlo_cli_opt_at(cli, NAMED[row].option, i)); i++) {
        enum mlo_status status = split(NAMED[row].option, pair, key, &text, err);
        if (status != MLO_OK)
            return status;
        json_t *value = text || NAMED[row].bare ? NAMED[row].value(text ? text : "") : NULL;
        if (!value || json_object_set_new(member, key, value) != 0)
            return mlo_error_set(err, MLO_EUSAGE, "--%s '%.120s' is not %s", NAMED[row].option, pair,
                                 NAMED[row].needs);
    }
    return MLO_OK;
}

/* PROJECT/NAME[@V] of the project that is pushed to, NAME[@V] or a digest. */
static enum mlo_status add_datasets(const struct mlo_cli *cli, const char *project, json_t *facts,
                                    struct mlo_error *err)
{
    const char *text;
    json_t *list = json_object_get(facts, "datasets");
    if (!mlo_cli_opt_at(cli, "dataset", 0))
        return MLO_OK;
    if (!json_is_array(list)) {
        list = json_array();
        json_object_set_new(facts, "datasets", list);
    }
    for (size_t i = 0; (text = mlo_cli_opt_at(cli, "dataset", i)); i++) {
        const char *slash = strchr(text, '/');
        if (slash && (strncmp(text, project, (size_t)(slash - text)) != 0 || project[slash - text])) {
            mlo_error_set(err, MLO_EUSAGE, "--dataset %.120s is of another project than %s", text, project);
            mlo_error_hint(err, "push it to %s too: a project's lineage names its own datasets", project);
            return MLO_EUSAGE;
        }
        if (json_array_append_new(list, json_string(slash ? slash + 1 : text)) != 0)
            return mlo_error_set(err, MLO_EUSAGE, "--dataset '%.120s' is not UTF-8", text);
    }
    return MLO_OK;
}

/* Other models that a model comes from: options, and members of facts. */
static const char *const MODELS[][2] = {{"teacher", "teacher"}, {"derived-from", "derived_from"}};

/* Whether the verb has the option: data have no teacher. */
static bool has_option(const struct mlo_cli *cli, const char *name)
{
    for (const struct mlo_cli_option *o = cli->verb->options; o && o->name; o++)
        if (strcmp(o->name, name) == 0)
            return true;
    return false;
}

/* --teacher [PROJECT/]MODEL@V[/VARIANT], of the project that is pushed to; likewise --derived-from. */
static enum mlo_status add_model(const struct mlo_cli *cli, const char *option, const char *member,
                                 const char *project, json_t *facts, struct mlo_error *err)
{
    const char *text = mlo_cli_opt(cli, option), *at = text ? strchr(text, '@') : NULL,
               *slash = text ? strchr(text, '/') : NULL;
    size_t n = strlen(project);
    if (!text)
        return MLO_OK;
    if (slash && (!at || slash < at)) {
        if (strncmp(text, project, n) != 0 || text[n] != '/') {
            mlo_error_set(err, MLO_EUSAGE, "--%s %.120s is of another project than %s", option, text,
                          project);
            mlo_error_hint(
                err,
                "push it to %s too: a project's lineage names its own models; `distill-eval` compares "
                "across projects",
                project);
            return MLO_EUSAGE;
        }
        text = slash + 1;
    }
    if (json_object_set_new(facts, member, json_string(text)) != 0)
        return mlo_error_set(err, MLO_EUSAGE, "--%s '%.120s' is not UTF-8", option, text);
    return MLO_OK;
}

enum mlo_status mlo_client_facts(const struct mlo_cli *cli, const char *project, json_t **out,
                                 struct mlo_error *err)
{
    const char *file = mlo_cli_opt(cli, "facts"), *code = mlo_cli_opt(cli, "code"),
               *licence = mlo_cli_opt(cli, "licence");
    json_t *facts = NULL, *reference = NULL;
    enum mlo_status status = MLO_OK;
    *out = NULL;
    if (file)
        MLO_TRY(mlo_json_load_file(file, &facts, err));
    else
        facts = json_object();
    if (!json_is_object(facts)) {
        status = mlo_error_set(err, MLO_EFORMAT, "%s is not a JSON object", file);
        mlo_error_hint(err,
                       "facts are code, datasets, derived_from, licence, metrics, params, tags and teacher: "
                       "docs/api.md");
        goto out;
    }
    for (size_t i = 0; i < MLO_COUNT(NAMED); i++)
        MLO_TRY(add_named(cli, i, facts, err));
    MLO_TRY(add_datasets(cli, project, facts, err));
    for (size_t i = 0; i < MLO_COUNT(MODELS); i++)
        if (has_option(cli, MODELS[i][0]))
            MLO_TRY(add_model(cli, MODELS[i][0], MODELS[i][1], project, facts, err));
    if (code) {
        MLO_TRY(mlo_client_code(code, &reference, err));
        json_object_set(facts, "code", reference);
    }
    if (licence && json_object_set_new(facts, "licence", json_string(licence)) != 0) {
        status = mlo_error_set(err, MLO_EUSAGE, "--licence is not UTF-8");
        goto out;
    }
    *out = json_incref(facts);
out:
    json_decref(reference);
    json_decref(facts);
    return status;
}
