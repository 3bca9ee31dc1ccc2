/* The frame of the `mlopt` command: one table of verbs makes parsing, help, suggestions, completion and the
 * man page. A verb is one file with a `const struct mlo_cli_verb`, and one row in main.c.
 *
 * Data goes to stdout, everything else to stderr. A verb returns a status; the frame prints the error and
 * chooses the exit code. */
#ifndef MLO_CLI_H
#define MLO_CLI_H

#include <stdio.h>

#include "base/base.h"

struct mlo_cli;

struct mlo_cli_option {
    const char *name;  /* long name */
    char letter;       /* or 0 */
    const char *value; /* what stands for its value in help; NULL: a switch */
    const char *help;
    const char *const *choices; /* NULL-terminated, or NULL */
    bool repeat;                /* may be given several times */
};

typedef enum mlo_status mlo_cli_run_fn(struct mlo_cli *cli, struct mlo_error *err);

enum mlo_cli_verb_flags {
    MLO_CLI_OWN_SIGNALS = 1, /* the verb handles SIGINT and SIGTERM itself */
    MLO_CLI_HIDDEN = 2,      /* not in help or completion: the program calls itself with it */
    MLO_CLI_TELLS_ONCE = 4,  /* prints what cannot be asked for again (a new token's text) */
};

struct mlo_cli_verb {
    const char *name;  /* one word, or two ("data push") */
    const char *group; /* heading in the help */
    mlo_cli_run_fn *run;
    const struct mlo_cli_option *options; /* ended by a NULL name; may be NULL */
    const char *positional;               /* as in the usage line: "MODEL.onnx" */
    int min_args, max_args;               /* max < 0: any number */
    const char *help;                     /* one line */
    const char *detail;                   /* more lines, examples; or NULL */
    unsigned flags;
};

enum mlo_cli_progress_mode { MLO_PROGRESS_AUTO, MLO_PROGRESS_PLAIN, MLO_PROGRESS_NONE, MLO_PROGRESS_JSON };

struct mlo_cli_given {
    const struct mlo_cli_option *option;
    const char *value; /* borrowed from argv; "" for a switch */
};

struct mlo_cli {
    const struct mlo_cli_verb *const *verbs;
    size_t verb_count;
    const struct mlo_cli_verb *verb;
    char **args; /* positional, borrowed from argv */
    int arg_count;
    struct mlo_cli_given *given;
    size_t given_count;
    bool json, quiet, no_input;
    enum mlo_cli_progress_mode progress_mode;
    bool want_help, want_version;
    /* Set by verbs for the frame's error report. */
    char request_id[80];
    char cause[128];
};

/* --- running -------------------------------------------------------------------------------------------- */

/* Parses argv, runs the verb, reports an error; the program's exit code. */
int mlo_cli_main(const struct mlo_cli_verb *const *verbs, size_t count, int argc, char **argv);
/* The parsing alone: fills *cli (clear it with mlo_cli_clear). The order of argv changes. */
MLO_MUST_USE enum mlo_status mlo_cli_parse(struct mlo_cli *cli, const struct mlo_cli_verb *const *verbs,
                                           size_t count, int argc, char **argv, struct mlo_error *err);
void mlo_cli_clear(struct mlo_cli *cli);
/* Every verb complete, names unique, no option that hides a global one. */
MLO_MUST_USE enum mlo_status mlo_cli_check(const struct mlo_cli_verb *const *verbs, size_t count,
                                           struct mlo_error *err);
/* The options that every verb takes; ended by a NULL name. */
const struct mlo_cli_option *mlo_cli_global_options(void);

/* --- what was given ------------------------------------------------------------------------------------- */

/* The last value of an option; NULL when it was not given. Asking for one that the verb does not declare is
 * a mistake in the program and aborts. */
const char *mlo_cli_opt(const struct mlo_cli *cli, const char *name);
bool mlo_cli_has(const struct mlo_cli *cli, const char *name);
/* The i-th value of a repeated option, NULL behind the last. */
const char *mlo_cli_opt_at(const struct mlo_cli *cli, const char *name, size_t i);
/* Numbers within [min, max]; the fallback when not given. MLO_EUSAGE names the option. */
MLO_MUST_USE enum mlo_status mlo_cli_int(const struct mlo_cli *cli, const char *name, int64_t fallback,
                                         int64_t min, int64_t max, int64_t *out, struct mlo_error *err);
MLO_MUST_USE enum mlo_status mlo_cli_float(const struct mlo_cli *cli, const char *name, double fallback,
                                           double min, double max, double *out, struct mlo_error *err);
/* The option's value; MLO_EUSAGE when it was not given. */
MLO_MUST_USE enum mlo_status mlo_cli_required(const struct mlo_cli *cli, const char *name, const char **out,
                                              struct mlo_error *err);

/* --- help ------------------------------------------------------------------------------------------------
 */

void mlo_cli_help(const struct mlo_cli *cli, struct mlo_buf *out); /* of the program */
void mlo_cli_help_verb(const struct mlo_cli_verb *verb, struct mlo_buf *out);
/* What completes the verbs, their options and the values of those with choices in a shell: "bash", "zsh" or
 * "fish"; MLO_EUSAGE for another. */
MLO_MUST_USE enum mlo_status mlo_cli_completion(const struct mlo_cli *cli, const char *shell,
                                                struct mlo_buf *out, struct mlo_error *err);
void mlo_cli_man(const struct mlo_cli *cli, struct mlo_buf *out); /* mlopt(1), for man */
/* The heading of verb i when it is the first one with it, else NULL: groups in the order of their first verb.
 */
const char *mlo_cli_group_at(const struct mlo_cli *cli, size_t i);
/* How the program may end; ended by a NULL text. */
struct mlo_cli_exit_code {
    int code;
    const char *text;
};
const struct mlo_cli_exit_code *mlo_cli_exit_codes(void);
extern const struct mlo_cli_verb mlo_verb_help, mlo_verb_completion;

/* --- output ------------------------------------------------------------------------------------------------
 */

/* A table for people: columns aligned, a header in bold on a terminal. */
struct mlo_table {
    struct mlo_arena *arena;
    const char **cells; /* row-major, the header first */
    size_t columns, rows, cap;
    unsigned right; /* bit c: column c is aligned to the right */
    bool failed;
};
/* `header` is "name|size>|…": '>' behind a name aligns the column to the right. */
void mlo_table_init(struct mlo_table *table, const char *header);
/* As many texts as there are columns; NULL is shown as "-". */
void mlo_table_row(struct mlo_table *table, ...);
/* The table as text; colour adds escape codes. */
void mlo_table_render(const struct mlo_table *table, bool colour, struct mlo_buf *out);
/* Prints to stdout, and frees it. MLO_EIO when stdout cannot be written. */
MLO_MUST_USE enum mlo_status mlo_table_print_take(struct mlo_table *table, struct mlo_error *err);
void mlo_table_clear(struct mlo_table *table);

/* Prints a JSON value to stdout, indented, with a final newline. */
MLO_MUST_USE enum mlo_status mlo_cli_print_json(const json_t *value, struct mlo_error *err);
/* Prints text to stdout, which nothing else writes; MLO_EIO when that fails (a full disk behind a
 * redirection). */
MLO_MUST_USE enum mlo_status mlo_cli_print(struct mlo_error *err, const char *fmt, ...) MLO_PRINTF(2, 3);
/* Whether a print failed since who reads stdout has closed it (`| head`): the program then ends as any other
 * does, by SIGPIPE. Not so a verb that MLO_CLI_TELLS_ONCE or is a service (MLO_CLI_OWN_SIGNALS): what it did
 * is more than its output, so its error is reported. */
bool mlo_cli_reader_gone(void);
/* A note for people on stderr, unless --quiet. */
void mlo_cli_note(const struct mlo_cli *cli, const char *fmt, ...) MLO_PRINTF(2, 3);
/* Whether escape codes may go to this stream: a terminal, and no NO_COLOR. */
bool mlo_cli_colour(FILE *stream);
/* "12.3 us", "4.56 ms", "1.20 s" from microseconds, into the caller's buffer, which is returned. */
char *mlo_cli_duration(double us, char out[32]);

/* How fast something goes on, smoothed over some seconds: it follows a link that changes its speed and does
 * not jump. Zeroed before use. */
struct mlo_cli_rate {
    uint64_t first_ns, last_ns;
    double last_fraction, per_s; /* fractions of the whole */
};
/* What was done at a time; one that is less than before begins anew. */
void mlo_cli_rate_add(struct mlo_cli_rate *rate, uint64_t now_ns, double fraction);
/* Seconds until all is done; negative while nothing can be said: within the first second, or when nothing
 * moves. */
double mlo_cli_rate_left(const struct mlo_cli_rate *rate);
/* "8 s", "3 min 20 s", "2 h 5 min", into the caller's buffer, which is returned. */
char *mlo_cli_left(double seconds, char out[32]);

/* Progress on stderr: a bar with the time left on a terminal (cut to its width), lines with --progress plain,
 * JSON lines with json, else nothing. A mlo_progress_fn with the struct as `arg`. */
struct mlo_cli_progress {
    const struct mlo_cli *cli;
    const char *what;
    char last[96];
    double last_fraction;
    uint64_t last_ns;
    struct mlo_cli_rate rate;
    bool drawn;
};
void mlo_cli_progress_start(struct mlo_cli_progress *progress, const struct mlo_cli *cli, const char *what);
void mlo_cli_progress(void *arg, double fraction, const char *message);
void mlo_cli_progress_end(struct mlo_cli_progress *progress);

/* Asks a yes/no question on the terminal. MLO_EUSAGE (with --yes as the hint) when there is no terminal or
 * --no-input was given; MLO_EINVAL on no. */
MLO_MUST_USE enum mlo_status mlo_cli_confirm(const struct mlo_cli *cli, struct mlo_error *err,
                                             const char *fmt, ...) MLO_PRINTF(3, 4);

/* --- files ------------------------------------------------------------------------------------- */

/* Moves or copies a finished file to its place, atomically: `to` is whole or untouched. */
MLO_MUST_USE enum mlo_status mlo_cli_install(const char *from, const char *to, struct mlo_error *err);
/* MLO_ENOTFOUND or MLO_EIO early, when the folder of an output path is not there or not writable. */
MLO_MUST_USE enum mlo_status mlo_cli_check_output(const char *path, struct mlo_error *err);
/* Puts the file's name in front of an error's message, unless the error names it already. */
void mlo_cli_name_file(struct mlo_error *err, const char *path);
/* A scratch folder that is removed by mlo_cli_scratch_remove, and also when a signal ends the program.
 * parent NULL: $TMPDIR. *path is borrowed until removed; NULL after an error. */
MLO_MUST_USE enum mlo_status mlo_cli_scratch(const char *parent, const char **path, struct mlo_error *err);
/* `path`: as it was given out; NULL: nothing. */
void mlo_cli_scratch_remove(const char *path);
/* What to say when a signal ends the program ("the run goes on: …"); copied; NULL: nothing. */
void mlo_cli_on_interrupt(const char *text);
/* Starts the thread that ends the program tidily on SIGINT and SIGTERM, with exit code 130 or 143. */
MLO_MUST_USE enum mlo_status mlo_cli_signals_start(struct mlo_error *err);

/* --- configuration ----------------------------------------------------------------------------- */

/* Flag > MLOPT_<NAME> > ~/.config/mlopt/config > fallback. */
struct mlo_config {
    char *url, *token;                 /* owned; token NULL when there is none */
    char *ca_file;                     /* certificates to trust beside the system's; owned, or NULL */
    const char *url_from, *token_from; /* "--url", "MLOPT_URL", "config file", "default" */
};
/* `flag_url` may be NULL. A config file that others can read and that holds a token is refused. */
MLO_MUST_USE enum mlo_status mlo_config_load(const char *flag_url, struct mlo_config *out,
                                             struct mlo_error *err);
void mlo_config_clear(struct mlo_config *config);
/* Parses the text of a config file: `key = value` lines, # comments. */
MLO_MUST_USE enum mlo_status mlo_config_parse(const char *text, const char *name, struct mlo_config *out,
                                              struct mlo_error *err);
/* "$XDG_STATE_HOME/mlopt/<name>" (or ~/.local/state), its folder made; yours (free). */
MLO_MUST_USE enum mlo_status mlo_config_state_path(const char *name, char **out, struct mlo_error *err);

#define MLO_DEFAULT_URL "http://127.0.0.1:8640"

#endif
