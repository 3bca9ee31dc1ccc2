/* One attempt at a job: inputs, child, blobs, completion. The token fences its effect; what it costs to be
 * wrong about the lease is work done twice, never an effect twice. */
#include <fcntl.h>
#include <fts.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "pipeline/service/child_impl.h"
#include "pipeline/service/worker_impl.h"

enum { PROGRESS_EVERY_MS = 500, OBSERVATIONS_MAX = 4096 };
static const uint64_t PLANS_MAX_BYTES = (uint64_t)8 << 30;     /* of a job's plans together */
static const uint64_t DOCUMENT_MAX_BYTES = (uint64_t)32 << 20; /* what the pages can show */
static const uint64_t SAMPLES_MAX_BYTES = (uint64_t)256 << 20; /* 16 Mi samples */

/* --- while the child runs ------------------------------------------------------------------------------ */

static void take_away(struct mlo_slot *slot, enum mlo_status status)
{
    pthread_mutex_lock(&slot->lock);
    slot->taken = status;
    pthread_mutex_unlock(&slot->lock);
}

static void send_progress(struct mlo_slot *slot)
{
    struct mlo_error error = {0};
    uint64_t now = mlo_clock_ns();
    if (slot->fraction <= slot->sent_fraction || now - slot->sent_ns < PROGRESS_EVERY_MS * 1000000ull)
        return;
    slot->sent_ns = now;
    slot->sent_fraction = slot->fraction;
    enum mlo_status status =
        mlo_queue_progress(slot->worker->o.db, &slot->job, slot->fraction, slot->message, &error);
    if (status == MLO_ELEASE || status == MLO_ECANCELLED)
        take_away(slot, status); /* anything else: the next one may get through */
}

static void on_progress(void *arg, double fraction, const char *message)
{
    struct mlo_slot *slot = arg;
    slot->fraction = fraction;
    snprintf(slot->message, sizeof slot->message, "%s", message);
    /* a cut in the middle of a character would not be UTF-8 any more */
    json_t *text = json_string(slot->message);
    if (!text)
        slot->message[0] = '\0';
    json_decref(text);
}

static enum mlo_status watch_lease(void *arg, struct mlo_error *err)
{
    struct mlo_slot *slot = arg;
    pthread_mutex_lock(&slot->lock);
    enum mlo_status taken = slot->taken;
    bool late = mlo_clock_ns() > slot->lease_end_ns;
    pthread_mutex_unlock(&slot->lock);
    if (taken == MLO_ECANCELLED)
        return mlo_error_set(err, MLO_ECANCELLED, "the job was cancelled");
    if (taken != MLO_OK || late)
        return mlo_error_set(err, MLO_ELEASE, "the lease on the job is lost");
    return MLO_OK;
}

static enum mlo_status watch(void *arg, struct mlo_error *err)
{
    struct mlo_slot *slot = arg;
    enum mlo_status status = watch_lease(slot, err);
    if (status == MLO_OK && atomic_load(&slot->worker->hand_back))
        status = mlo_error_set(err, MLO_ECANCELLED, "the worker stops");
    if (status == MLO_OK)
        send_progress(slot);
    return status;
}

static void on_log(void *arg, int stderr_fd, bool last)
{
    struct mlo_slot *slot = arg;
    mlo_job_log_look(&slot->log, stderr_fd, last);
}

/* --- what the child left ------------------------------------------------------------------------------- */

/* Opens a file that the child names. The child ran an untrusted model: what leads out of its folder is
 * refused, and it is the open file that is looked at, not a name that could mean another one by now. */
static enum mlo_status open_inside(const char *dir, const char *file, int *fd, struct mlo_error *err)
{
    char root[PATH_MAX], real[PATH_MAX], link[32];
    char *joined = file[0] == '/' ? strdup(file) : mlo_fs_join(dir, file, NULL);
    struct stat st;
    if (!joined)
        return mlo_error_nomem(err);
    *fd = open(joined, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    free(joined);
    snprintf(link, sizeof link, "/proc/self/fd/%d", *fd);
    ssize_t length = *fd < 0 ? -1 : readlink(link, real, sizeof real - 1);
    real[length < 0 ? 0 : length] = '\0';
    if (length > 0 && realpath(dir, root) && mlo_str_starts(real, root) && real[strlen(root)] == '/' &&
        fstat(*fd, &st) == 0 && S_ISREG(st.st_mode))
        return MLO_OK;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    return mlo_error_set(err, MLO_EINTERNAL, "the step names a result that is no file in its folder");
}

/* Puts a file of the scratch folder into the blob store. */
static enum mlo_status store_file(struct mlo_worker *worker, const char *dir, const char *file,
                                  struct mlo_digest *digest, uint64_t *size_bytes, struct mlo_error *err)
{
    int fd;
    enum mlo_status status = open_inside(dir, file, &fd, err);
    if (status != MLO_OK)
        return status;
    status = mlo_blob_put_fd(worker->o.blobs, fd, digest, size_bytes, err);
    close(fd);
    return status;
}

static enum mlo_status store_samples(struct mlo_worker *worker, const char *dir, json_t *observations,
                                     struct mlo_error *err)
{
    json_t *seen;
    size_t i;
    json_array_foreach(observations, i, seen)
    {
        const char *file = mlo_json_str(seen, "samples", NULL);
        struct mlo_digest digest;
        uint64_t size_bytes;
        char text[MLO_DIGEST_TEXT_SIZE];
        if (!file)
            continue;
        enum mlo_status status = store_file(worker, dir, file, &digest, &size_bytes, err);
        if (status != MLO_OK)
            return status;
        if (json_object_set_new(seen, "samples", json_string(mlo_digest_text(&digest, text))) < 0 ||
            json_object_set_new(seen, "samples_bytes", json_integer((json_int_t)size_bytes)) < 0)
            return mlo_error_nomem(err);
    }
    return MLO_OK;
}

/* A signature says that this worker compiled the plan: only a step that makes plans has any signed, not more
 * than were asked of it, and only of the model that it was given. */
static enum mlo_status check_plans(const struct mlo_job *job, const json_t *plans, struct mlo_error *err)
{
    const struct mlo_step *step = mlo_step_find(job->step);
    size_t asked = json_array_size(json_object_get(job->options, "batch")), i;
    struct mlo_digest model;
    json_t *plan;
    if (!step || !step->makes_plans)
        return mlo_error_set(err, MLO_EFORMAT, "the step '%s' returned plans, which is not for it to make",
                             job->step);
    if (json_array_size(plans) > asked)
        return mlo_error_set(err, MLO_EFORMAT, "the step '%s' returned %zu plans; %zu were asked for",
                             job->step, json_array_size(plans), asked);
    json_array_foreach(plans, i, plan)
    {
        if (!mlo_digest_parse(mlo_json_str(json_object_get(plan, "fingerprint"), "model", ""), &model) ||
            !mlo_digest_eq(&model, mlo_job_artifact(job)))
            return mlo_error_set(err, MLO_EFORMAT, "the step '%s' returned a plan of another model",
                                 job->step);
    }
    return MLO_OK;
}

static enum mlo_status to_blob(void *arg, const void *bytes, size_t size, struct mlo_error *err)
{
    return mlo_blob_writer_write(arg, bytes, size, err);
}

static enum mlo_status store_plan(struct mlo_worker *worker, const char *dir, const struct mlo_sign_key *key,
                                  json_t *plan, uint64_t *bytes_left, struct mlo_error *err)
{
    enum mlo_status status;
    const char *file = mlo_json_str(plan, "path", "");
    struct mlo_plan_signing how = {.key = key,
                                   .fingerprint = json_object_get(plan, "fingerprint"),
                                   .max_bytes = *bytes_left,
                                   .sink = to_blob};
    struct mlo_blob_writer *writer = NULL;
    struct mlo_digest digest;
    uint64_t size_bytes;
    char signer[MLO_PUBLIC_KEY_TEXT_SIZE], text[MLO_DIGEST_TEXT_SIZE];
    int fd = -1;
    MLO_TRY(open_inside(dir, file, &fd, err));
    MLO_TRY(mlo_blob_writer_open(worker->o.blobs, &writer, err));
    how.arg = writer;
    MLO_TRY(mlo_plan_sign(fd, mlo_fs_basename(file), &how, err));
    MLO_TRY(mlo_blob_writer_commit(writer, NULL, &digest, &size_bytes, err));
    *bytes_left -= size_bytes;
    mlo_public_key_text(mlo_sign_key_public(key), signer);
    if (json_object_set_new(plan, "blob", json_string(mlo_digest_text(&digest, text))) < 0 ||
        json_object_set_new(plan, "size", json_integer((json_int_t)size_bytes)) < 0 ||
        json_object_set_new(plan, "signer", json_string(signer)) < 0)
        status = mlo_error_nomem(err);
out:
    mlo_blob_writer_free(writer);
    if (fd >= 0)
        close(fd);
    return status;
}

/* Signs the plans with this machine's key, and stores them. The child, which ran an untrusted model, never
 * sees the key; what it wrote is checked again by whoever loads it. */
static enum mlo_status store_plans(const struct mlo_slot *slot, const char *dir, json_t *plans,
                                   struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_sign_key *key = NULL;
    uint64_t bytes_left = PLANS_MAX_BYTES;
    char *path = NULL;
    json_t *plan;
    size_t i;
    if (json_array_size(plans) == 0)
        return MLO_OK;
    MLO_TRY(check_plans(&slot->job, plans, err));
    path = mlo_fs_join(slot->worker->o.work_dir, "plan.key", NULL);
    if (!path)
        return mlo_error_nomem(err);
    MLO_TRY(mlo_plan_own_key(path, &key, err));
    json_array_foreach(plans, i, plan)
    {
        MLO_TRY(store_plan(slot->worker, dir, key, plan, &bytes_left, err));
    }
out:
    mlo_sign_key_free(key);
    free(path);
    return status;
}

/* The document of a step that makes one, in the blob store. */
static enum mlo_status store_document(struct mlo_slot *slot, const char *dir, const char *file,
                                      struct mlo_completion *out, struct mlo_error *err)
{
    const struct mlo_step *step = mlo_step_find(slot->job.step);
    struct stat st;
    int fd;
    if (!file)
        return MLO_OK;
    if (!step || !step->makes_document)
        return mlo_error_set(err, MLO_EFORMAT,
                             "the step '%s' returned a document, which is not for it to make",
                             slot->job.step);
    enum mlo_status status = open_inside(dir, file, &fd, err);
    if (status != MLO_OK)
        return status;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size > DOCUMENT_MAX_BYTES)
        status = mlo_error_set(err, MLO_ETOOBIG, "the step '%s' returned a document of more than 32 MiB",
                               slot->job.step);
    else
        status = mlo_blob_put_fd(slot->worker->o.blobs, fd, &out->document, &out->document_bytes, err);
    close(fd);
    out->has_document = status == MLO_OK;
    return status;
}

/* What the step chose: a blob of its own, named in the step's report. What a child writes there by itself
 * counts for nothing. */
static enum mlo_status store_decision(struct mlo_slot *slot, const char *dir, const char *file,
                                      json_t *report, struct mlo_error *err)
{
    const struct mlo_step *step = mlo_step_find(slot->job.step);
    struct mlo_digest digest;
    uint64_t size_bytes;
    char text[MLO_DIGEST_TEXT_SIZE];
    struct stat st;
    int fd;
    if (json_is_object(report))
        json_object_del(report, MLO_REPORT_DECISION);
    if (!file)
        return MLO_OK;
    if (!step || !(step->makes_decision || mlo_step_reads_select(step, slot->job.options)) ||
        !json_is_object(report))
        return mlo_error_set(err, MLO_EFORMAT,
                             "the step '%s' returned a decision, which is not for it to make",
                             slot->job.step);
    enum mlo_status status = open_inside(dir, file, &fd, err);
    if (status != MLO_OK)
        return status;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size > DOCUMENT_MAX_BYTES)
        status = mlo_error_set(err, MLO_ETOOBIG, "the step '%s' returned a decision of more than 32 MiB",
                               slot->job.step);
    else
        status = mlo_blob_put_fd(slot->worker->o.blobs, fd, &digest, &size_bytes, err);
    close(fd);
    if (status == MLO_OK && json_object_set_new(report, MLO_REPORT_DECISION,
                                                json_pack("{s:s,s:I}", "blob", mlo_digest_text(&digest, text),
                                                          "size", (json_int_t)size_bytes)) != 0)
        status = mlo_error_nomem(err);
    return status;
}

/* Which samples the step read: only of datasets that it was asked for. */
static enum mlo_status take_samples(const struct mlo_slot *slot, const char *dir, const json_t *files,
                                    struct mlo_completion *out, struct mlo_error *err)
{
    const char *role;
    json_t *file;
    json_object_foreach((json_t *)files, role, file)
    {
        const char *digest = mlo_json_str(json_object_get(slot->job.datasets, role), "digest", "");
        struct stat st;
        int fd;
        if (!json_is_string(file) || out->sample_count == MLO_COUNT(out->samples))
            return mlo_error_set(err, MLO_EFORMAT, "the step '%s' returned samples of no dataset",
                                 slot->job.step);
        struct mlo_sample_set *set = &out->samples[out->sample_count];
        if (!mlo_digest_parse(digest, &set->dataset))
            return mlo_error_set(err, MLO_EFORMAT, "the step '%s' returned samples of no dataset",
                                 slot->job.step);
        enum mlo_status status = open_inside(dir, json_string_value(file), &fd, err);
        if (status != MLO_OK)
            return status;
        out->sample_count++;
        if (fstat(fd, &st) != 0 || (uint64_t)st.st_size > SAMPLES_MAX_BYTES)
            status =
                mlo_error_set(err, MLO_ETOOBIG, "the step '%s' returned too many samples", slot->job.step);
        size_t size = status == MLO_OK ? (size_t)st.st_size : 0, got = 0;
        if (status == MLO_OK && !mlo_buf_reserve(&set->hashes, size))
            status = mlo_error_nomem(err);
        if (status == MLO_OK && (!mlo_fs_read_full(fd, set->hashes.data, size, &got) || got != size))
            status = mlo_error_set(err, MLO_EIO, "cannot read the samples that the step '%s' returned",
                                   slot->job.step);
        set->hashes.len = got;
        close(fd);
        if (status != MLO_OK)
            return status;
    }
    return MLO_OK;
}

/* What the child read of its files: the digests are ours, the form is checked, and what is wrong is left out.
 */
static void take_signatures(const struct mlo_slot *slot, const json_t *read, struct mlo_completion *out)
{
    const struct mlo_job *job = &slot->job;
    const struct {
        const char *role;
        const struct mlo_digest *blob;
    } files[] = {{"source", &job->source},
                 {"model", job->from_source ? NULL : &job->input},
                 {"artifact", out->has_artifact ? &out->artifact : NULL},
                 {"labels", job->has_labels ? &job->labels : NULL}};
    for (size_t i = 0; i < MLO_COUNT(files); i++) {
        const json_t *document = json_object_get(read, files[i].role);
        struct mlo_error ignored = {0};
        bool labels = strcmp(files[i].role, "labels") == 0;
        if (!files[i].blob || !document || json_object_size(document) != (labels ? 1 : 2) ||
            (labels ? !json_is_object(json_object_get(document, "labels"))
                    : mlo_signature_check(document, &ignored) != MLO_OK))
            continue;
        out->signatures[out->signature_count++] = (struct mlo_signature_reading){
            .blob = *files[i].blob, .document = document, .worker = slot->worker->id, .job_id = job->id};
    }
}

/* The slot that this thread works for. */
static _Thread_local struct mlo_slot *at_work;

bool mlo_attempt_once_more(enum mlo_status status)
{
    struct mlo_error lease = {0};
    if ((status != MLO_EUNAVAILABLE && status != MLO_ETIMEOUT) || !at_work ||
        watch_lease(at_work, &lease) != MLO_OK)
        return false;
    mlo_clock_sleep_ms(200);
    return true;
}

/* Completes, again as long as the lease lasts when the database is away. A commit whose answer got lost is
 * seen as a lost lease the second time: its effect is there once. */
static enum mlo_status complete(struct mlo_slot *slot, const struct mlo_completion *completion,
                                struct mlo_error *err)
{
    for (;;) {
        enum mlo_status status =
            mlo_together_complete(&slot->worker->together, slot->worker->o.db, &slot->job, completion, err);
        struct mlo_error lease = {0};
        /* MLO_EIO: what was stored is not there any more (mlo_blob_record_stored); only a new attempt helps
         */
        if (status == MLO_OK || status == MLO_EIO || !mlo_status_info(status)->retry ||
            watch_lease(slot, &lease) != MLO_OK)
            return status;
        mlo_clock_sleep_ms(200);
    }
}

/* What the job put into the blob store. */
static uint64_t written_bytes(const struct mlo_completion *made)
{
    uint64_t sum = made->size_bytes + made->document_bytes;
    for (size_t i = 0; i < json_array_size(made->plans); i++)
        sum += (uint64_t)mlo_json_i64(json_array_get(made->plans, i), "size", 0);
    for (size_t i = 0; i < json_array_size(made->observations); i++)
        sum += (uint64_t)mlo_json_i64(json_array_get(made->observations, i), "samples_bytes", 0);
    return sum;
}

static enum mlo_status deliver(struct mlo_slot *slot, const char *dir, json_t *result, int64_t started_us,
                               struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    const struct mlo_attest_run how = {.started_us = started_us, .version = MLOPT_VERSION};
    char *envelope = NULL, signer[MLO_PUBLIC_KEY_TEXT_SIZE];
    const char *artifact = mlo_json_str(result, "artifact", NULL);
    json_t *report = json_object_get(result, "report"),
           *observations = json_object_get(result, "observations"), *plans = json_object_get(result, "plans");
    char class[256];
    struct mlo_completion completion = {
        .machine_class = mlo_machine_class(class, sizeof class),
        .program = "mlopt " MLOPT_VERSION,
        .blobs = slot->worker->o.blobs,
        .has_artifact = artifact != NULL,
        .report = json_is_object(report) ? report : NULL,
        .observations = json_is_array(observations) ? observations : NULL,
        .plans = json_is_array(plans) ? plans : NULL,
    };
    if (json_array_size(observations) > OBSERVATIONS_MAX)
        return mlo_error_set(err, MLO_EFORMAT,
                             "the step '%s' returned %zu observations; at most %d are taken", slot->job.step,
                             json_array_size(observations), OBSERVATIONS_MAX);
    if (artifact)
        MLO_TRY(store_file(slot->worker, dir, artifact, &completion.artifact, &completion.size_bytes, err));
    MLO_TRY(store_samples(slot->worker, dir, observations, err));
    MLO_TRY(store_plans(slot, dir, plans, err));
    MLO_TRY(store_document(slot, dir, mlo_json_str(result, "document", NULL), &completion, err));
    MLO_TRY(store_decision(slot, dir, mlo_json_str(result, "decision", NULL), report, err));
    if (artifact && slot->job.has_key) {
        do
            status =
                mlo_attest_completion(slot->worker, &slot->job, &completion, &how, &envelope, signer, err);
        while (mlo_attempt_once_more(status));
        MLO_TRY(status);
        completion.envelope = envelope;
        completion.signer = signer;
    }
    MLO_TRY(take_samples(slot, dir, json_object_get(result, "samples"), &completion, err));
    slot->cost.written_bytes = written_bytes(&completion);
    completion.cost = slot->cost;
    take_signatures(slot, json_object_get(result, "signatures"), &completion);
    mlo_phases_send(&slot->phases, slot->worker->o.db, &slot->job);
    MLO_TRY(complete(slot, &completion, err));
out:
    free(envelope);
    for (size_t i = 0; i < completion.sample_count; i++)
        mlo_buf_clear(&completion.samples[i].hashes);
    return status;
}

/* --- the attempt --------------------------------------------------------------------------------------- */

static enum mlo_status find_known(struct mlo_slot *slot, struct mlo_completion *known, json_t **report,
                                  struct mlo_error *err)
{
    struct mlo_db_conn *conn;
    enum mlo_status status = mlo_db_acquire(slot->worker->o.db, &conn, err);
    if (status != MLO_OK)
        return status;
    status = mlo_derivation_find(conn, &slot->job.key, &known->artifact, &known->size_bytes, report, err);
    mlo_db_release(conn);
    return status;
}

/* Completes the job without work when its derivation is known and its bytes are there. */
static enum mlo_status try_reuse(struct mlo_slot *slot, bool *done, struct mlo_error *err)
{
    enum mlo_status status;
    struct mlo_completion known = {.blobs = slot->worker->o.blobs, .reused = true, .has_artifact = true};
    json_t *report = NULL;
    *done = false;
    if (!slot->job.has_key || slot->job.reproduces)
        return MLO_OK;
    do
        status = find_known(slot, &known, &report, err);
    while (mlo_attempt_once_more(status));
    if (status == MLO_OK && mlo_blob_exists(slot->worker->o.blobs, &known.artifact)) {
        known.report = report;
        status = complete(slot, &known, err);
        *done = status == MLO_OK;
    } else if (status == MLO_ENOTFOUND) {
        status = MLO_OK;
    }
    json_decref(report);
    return status;
}

/* The inputs that lie in the folder. */
static uint64_t read_bytes(const char *dir)
{
    char *in = mlo_fs_join(dir, "in", NULL);
    char *const roots[] = {in, NULL};
    FTS *walk = in ? fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, NULL) : NULL; /* a blob may be a link */
    uint64_t sum = 0;
    for (FTSENT *entry; walk && (entry = fts_read(walk));)
        if (entry->fts_info == FTS_F)
            sum += (uint64_t)entry->fts_statp->st_size;
    if (walk)
        fts_close(walk);
    free(in);
    return sum;
}

/* Which GPUs it runs on, beside what it uses of them. */
static enum mlo_status tell_gpus(struct mlo_slot *slot, struct mlo_error *err)
{
    struct mlo_buf list = MLO_BUF_INIT;
    if (slot->gpu_count == 0)
        return MLO_OK;
    mlo_buf_putc(&list, '{');
    for (int i = 0; i < slot->gpu_count; i++)
        mlo_buf_printf(&list, "%s\"%s\"", i ? "," : "", slot->worker->gpus.items[slot->gpus[i]].uuid);
    mlo_buf_putc(&list, '}');
    enum mlo_status status;
    do
        status = mlo_buf_ok(&list)
                     ? mlo_queue_tell_gpus(slot->worker->o.db, &slot->job, mlo_buf_str(&list), err)
                     : mlo_error_nomem(err);
    while (mlo_attempt_once_more(status));
    mlo_buf_clear(&list);
    return status;
}

/* The recipe's time, or the worker's where that is less. True: the recipe's. */
static bool set_time(const struct mlo_slot *slot, struct mlo_child *child)
{
    uint32_t own = slot->job.needs.timeout_s, most = slot->worker->o.max_job_s;
    bool recipe = own && (!most || own <= most);
    child->max_s = recipe ? own : most;
    child->time_hint = recipe
                           ? "the recipe's 'timeout' sets it: `--set timeout=4h` gives all steps more that "
                             "say nothing themselves"
                           : "`mlopt worker --max-job-time` sets it";
    return recipe;
}

static enum mlo_status work(struct mlo_slot *slot, const char *dir, bool *crashed, struct mlo_error *err)
{
    enum mlo_status status = MLO_OK;
    struct mlo_worker *worker = slot->worker;
    bool late = false;
    struct mlo_machine_lock lock = MLO_MACHINE_LOCK_INIT;
    struct mlo_confinement confined = {.out = NULL};
    struct mlo_load load;
    struct mlo_child child = {
        .exe = worker->exe,
        .folder = dir,
        .max_memory_bytes = worker->o.max_memory_bytes,
        .max_scratch_bytes = worker->o.max_scratch_bytes,
        .max_tasks = worker->o.max_tasks,
        .out_of_time = &late,
        .cpu_s = &slot->cost.cpu_s,
        .watch = watch,
        .progress = on_progress,
        .log = on_log,
        .arg = slot,
    };
    json_t *result = NULL;
    int64_t started_us = mlo_clock_utc_us();
    mlo_phases_next(&slot->phases, "inputs");
    bool recipes_time = set_time(slot, &child);
    MLO_TRY(tell_gpus(slot, err));
    MLO_TRY(mlo_confinement_init(slot, dir, &confined, err));
    MLO_TRY(mlo_attempt_inputs(worker, &slot->job, dir, confined.checkpoints, err));
    MLO_TRY(mlo_confinement_close(slot, dir, &confined, err));
    child.dir = confined.out;
    child.kept[0] = confined.checkpoints;
    child.kept[1] = confined.kernels;
    child.sandbox = confined.sandbox;
    child.env = confined.env;
    slot->cost.read_bytes = read_bytes(dir);
    mlo_phases_next(&slot->phases, "turn");
    MLO_TRY(mlo_machine_lock(worker->o.work_dir, slot->job.exclusive, watch, slot, &lock, err));
    mlo_load_begin(&load);
    mlo_phases_next(&slot->phases, "step");
    status = mlo_child_run(&child, &result, crashed, err);
    if (status == MLO_OK && slot->job.exclusive && json_is_object(json_object_get(result, "report")))
        json_object_set_new(json_object_get(result, "report"), "load", mlo_load_end(&load));
    mlo_machine_unlock(&lock);
    slot->final = late && recipes_time;
    MLO_TRY(status);
    mlo_phases_next(&slot->phases, "store");
    MLO_TRY(deliver(slot, confined.out, result, started_us, err));
out:
    mlo_confinement_clear(&confined);
    json_decref(result);
    return status;
}

static void log_end(const struct mlo_slot *slot, enum mlo_log_level level, const char *event,
                    const struct mlo_error *error)
{
    char job[24], attempt[24];
    snprintf(job, sizeof job, "%lld", (long long)slot->job.id);
    snprintf(attempt, sizeof attempt, "%d", slot->job.number);
    mlo_log(level, event, "job", job, "step", slot->job.step, "attempt", attempt, "error",
            error ? error->message : NULL, "where", error && error->where[0] ? error->where : NULL, NULL);
}

/* Tells the queue; when the database stays away, the end of the lease says the same. */
static void report_failure(struct mlo_slot *slot, struct mlo_error *error, enum mlo_attempt_end end,
                           bool retry)
{
    struct mlo_attempt_failure failure = {
        .job = slot->job.id,
        .token = slot->job.token,
        .end = end,
        .error = end == MLO_ATTEMPT_RETURNED ? NULL : error,
        .retry = retry,
        .backoff_ms = slot->worker->o.backoff_ms,
        .cost = &slot->cost,
    };
    struct mlo_error refused = {0}, lease = {0};
    enum mlo_status status;
    mlo_phases_send(&slot->phases, slot->worker->o.db, &slot->job);
    while ((status = mlo_queue_fail(slot->worker->o.db, &failure, &refused)) != MLO_OK &&
           mlo_status_info(status)->retry && watch_lease(slot, &lease) == MLO_OK)
        mlo_clock_sleep_ms(200);
    if (status != MLO_OK)
        log_end(slot, MLO_LOG_WARN, "job's failure not recorded", &refused);
}

static void count_end(struct mlo_slot *slot, enum mlo_worker_end end)
{
    atomic_fetch_add(&slot->worker->ends[end], 1);
}

static void conclude(struct mlo_slot *slot, enum mlo_status status, bool crashed, struct mlo_error *error)
{
    struct mlo_error lease = {0};
    if (status == MLO_OK) {
        count_end(slot, MLO_END_DONE);
        log_end(slot, MLO_LOG_INFO, "job done", NULL);
        return;
    }
    enum mlo_status ours = watch_lease(slot, &lease);
    if (status == MLO_ELEASE || ours != MLO_OK) {
        count_end(slot, ours == MLO_ECANCELLED ? MLO_END_CANCELLED : MLO_END_LOST);
        log_end(slot, ours == MLO_ECANCELLED ? MLO_LOG_INFO : MLO_LOG_WARN,
                ours == MLO_ECANCELLED ? "job cancelled" : "lease lost", error);
    } else if (status == MLO_ECANCELLED && atomic_load(&slot->worker->hand_back)) {
        count_end(slot, MLO_END_RETURNED);
        log_end(slot, MLO_LOG_INFO, "job handed back", NULL);
        report_failure(slot, error, MLO_ATTEMPT_RETURNED, true);
    } else {
        count_end(slot, MLO_END_FAILED);
        log_end(slot, MLO_LOG_WARN, "job failed", error);
        mlo_error_where(error, "step '%s'", slot->job.step);
        report_failure(slot, error, MLO_ATTEMPT_FAILED,
                       !slot->final && (crashed || mlo_status_info(status)->retry));
    }
}

void mlo_attempt_run(struct mlo_slot *slot)
{
    enum mlo_status status = MLO_OK;
    struct mlo_error error = {0};
    char *dir = NULL;
    bool crashed = false, reused = false;
    at_work = slot;
    slot->fraction = slot->sent_fraction = 0;
    slot->cost = (struct mlo_cost){.cpu_s = 0};
    slot->sent_ns = 0;
    slot->final = false;
    mlo_phases_begin(&slot->phases);
    slot->message[0] = '\0';
    mlo_job_log_begin(&slot->log, slot->worker->o.db, &slot->job);
    log_end(slot, MLO_LOG_INFO, "job claimed", NULL);
    if (slot->job.broken.status != MLO_OK) {
        error = slot->job.broken;
        status = error.status;
        goto out;
    }
    MLO_TRY(try_reuse(slot, &reused, &error));
    if (reused)
        goto out;
    MLO_TRY(mlo_fs_tempdir(slot->worker->scratch_dir, "job-", &dir, &error));
    status = work(slot, dir, &crashed, &error);
out:
    conclude(slot, status, crashed, &error);
    at_work = NULL;
    if (dir)
        mlo_fs_remove_tree(dir);
    free(dir);
}
