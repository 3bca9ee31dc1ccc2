/* The log of the programs (server, worker): one line an event on stderr, as text or JSON. Libraries do
 * not log; they return errors. Safe from several threads; a line is one write. */
#ifndef MLO_BASE_LOG_H
#define MLO_BASE_LOG_H

#include "base/error.h"
#include "base/macros.h"

enum mlo_log_level { MLO_LOG_DEBUG, MLO_LOG_INFO, MLO_LOG_WARN, MLO_LOG_ERROR };
enum mlo_log_format { MLO_LOG_TEXT, MLO_LOG_JSON };

/* Defaults: info, text, stderr (fd 2). `component` ("server", "worker") is copied into every line. */
void mlo_log_setup(enum mlo_log_level level, enum mlo_log_format format, int fd, const char *component);

/* The level named "debug", "info", "warn" or "error"; -1 when unknown. */
int mlo_log_level_parse(const char *text);

/* Logs an event (constant, short, for machines and people) and key/value pairs: names and texts in
 * turn, ended by NULL:
 *     mlo_log(MLO_LOG_INFO, "job claimed", "job", id, "step", step, NULL);
 * A NULL value is written as "-". */
void mlo_log(enum mlo_log_level level, const char *event, ...) __attribute__((sentinel));
/* Logs an error's status code, message, place and hint, with what was being done. */
void mlo_log_error(enum mlo_log_level level, const char *event, const struct mlo_error *error);

#endif
