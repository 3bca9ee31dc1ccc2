#include <string.h>

#include "api/cli/local/local_impl.h"
#include "engines/cuda/found.h"

static json_t *engine_json(const struct mlo_engine *engine, struct mlo_error *why)
{
    bool here = engine->probe(why) == MLO_OK;
    return json_pack("{s:s,s:s,s:b,s:s?}", "name", engine->name, "version", engine->version(), "available",
                     here, "reason", here ? NULL : why->message);
}

/* All of them, and what this machine is. */
static enum mlo_status list_engines(const struct mlo_cli *cli, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    size_t count, known;
    const struct mlo_engine *const *engines = mlo_engine_table(&count);
    const char *const *targets = mlo_targets(&known);
    json_t *list = json_array(), *all = NULL, *machine = NULL, *satisfied = json_array();
    struct mlo_table table = {0};
    struct mlo_buf words = MLO_BUF_INIT;
    char class_name[96];
    mlo_table_init(&table, "engine|version|here");
    for (size_t i = 0; i < count; i++) {
        struct mlo_error why = {0};
        json_t *one = engine_json(engines[i], &why);
        mlo_table_row(&table, engines[i]->name, engines[i]->version(),
                      mlo_json_bool(one, "available", false) ? "yes" : why.message);
        json_array_append_new(list, one);
    }
    for (size_t i = 0; i < known; i++) {
        if (strcmp(targets[i], "cpu") == 0 || !mlo_machine_satisfies(targets[i]))
            continue;
        json_array_append_new(satisfied, json_string(targets[i]));
        mlo_buf_printf(&words, "%s%s", words.len ? ", " : "", targets[i]);
    }
    MLO_TRY(mlo_machine_describe(&machine, err));
    mlo_machine_class(class_name, sizeof class_name);
    if (cli->json) {
        all = json_pack("{s:O,s:O,s:s,s:O}", "engines", list, "machine", machine, "machine_class", class_name,
                        "targets", satisfied);
        MLO_TRY(mlo_cli_print_json(all, err));
    } else {
        MLO_TRY(mlo_table_print_take(&table, err));
        MLO_TRY(mlo_cli_print(err, "machine class %s; satisfies %s; %u CPUs\n", class_name,
                              mlo_buf_str(&words), mlo_cpu_count()));
    }
out:
    mlo_table_clear(&table);
    mlo_buf_clear(&words);
    json_decref(all);
    json_decref(list);
    json_decref(machine);
    json_decref(satisfied);
    return status;
}

/* One of them: all that was found of it, and an error where it cannot run here. */
static enum mlo_status show_engine(const struct mlo_cli *cli, const char *name, struct mlo_error *err)
{
    enum mlo_status status;
    const struct mlo_engine *engine;
    struct mlo_error why = {0};
    json_t *one = NULL, *found = NULL;
    MLO_TRY(mlo_engine_find(name, &engine, err));
    one = engine_json(engine, &why);
    if (strcmp(name, "cuda") == 0)
        MLO_TRY(mlo_cuda_found(&found, err));
    if (found && json_object_set(one, "found", found) != 0) {
        status = mlo_error_nomem(err);
        goto out;
    }
    if (cli->json)
        MLO_TRY(mlo_cli_print_json(one, err));
    else if (found)
        MLO_TRY(mlo_local_gpu_print(found, err));
    else
        MLO_TRY(mlo_cli_print(err, "%s\n", engine->version()));
    if (found) {
        status = mlo_local_gpu_needed(found, err);
    } else if (why.status != MLO_OK) {
        status = mlo_local_no_device(why.status, &why);
        if (err)
            *err = why;
    }
out:
    json_decref(one);
    json_decref(found);
    return status;
}

static enum mlo_status engines_run(struct mlo_cli *cli, struct mlo_error *err)
{
    return cli->arg_count ? show_engine(cli, cli->args[0], err) : list_engines(cli, err);
}

const struct mlo_cli_verb mlo_verb_engines = {
    .name = "engines",
    .group = "Local (no server needed)",
    .run = engines_run,
    .positional = "[ENGINE]",
    .max_args = 1,
    .help = "which engines run here, and which targets this machine satisfies",
    .detail =
        "  mlopt engines           all of them\n"
        "  mlopt engines cuda      plugin, driver, libraries and GPUs, and what is missing; exit code 9 "
        "where it cannot run\n",
};
