/* What a step writes on stderr, sent to the database while it runs: the first MLO_JOB_LOG_HEAD bytes as they
 * come, and when the step has ended the last MLO_JOB_LOG_TAIL of the rest. A part is sent each second at
 * first, and then ever more rarely (each time the attempt is 2% older), so that a long step has some hundreds
 * of them. */
#ifndef MLO_SERVICE_JOB_LOG_IMPL_H
#define MLO_SERVICE_JOB_LOG_IMPL_H

#include "pipeline/service/service_impl.h"

enum { MLO_JOB_LOG_HEAD = 256 << 10, MLO_JOB_LOG_TAIL = 32 << 10 };

struct mlo_job_log {
    struct mlo_db *db;
    const struct mlo_job *job;
    uint64_t begun_ns, next_ns;
    uint64_t sent_bytes; /* of the file: where to read on */
    int part;
    bool lost; /* the attempt is another one's by now: nothing more is sent */
};

void mlo_job_log_begin(struct mlo_job_log *log, struct mlo_db *db, const struct mlo_job *job);
/* Sends what the file has more than before, when it is time; at the end (`last`) all of it. What cannot be
 * sent is sent the next time, or is missing: a log fails no job. */
void mlo_job_log_look(struct mlo_job_log *log, int fd, bool last);

#endif
