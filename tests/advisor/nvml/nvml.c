/* A small driver library that answers what nvidia-ml-py asks, from a table: it stands in for libnvidia-ml.so.1.

   The table is the file $NVML_TABLE. A line is `second card quantity value...`: from that second on (counted from the
   first nvmlInit of the process) the card's quantity has these values, the first for the first question, the second for
   the next, and from the beginning again after the last. The last line that applies counts. A value "!15" is an error,
   with NVML's number of it; the quantity "*" stands for all; what no line names is not supported. Card "-" is the
   driver itself; its quantities may be functions: "- nvmlDeviceGetTemperature !26" has them refused. "0.1" is the second
   MIG instance of card 0. Names reach to the end of their line, processes are `pid:bytes`. A card that has "delay_us"
   answers no sooner.

   With $NVML_ANSWERS every answer of a quantity of a card is written to that file with the process number behind it, as
   `card quantity return value`. Signatures, structures and error numbers: NVML API reference and nvml.h,
   https://docs.nvidia.com/deploy/nvml-api/ */

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };
enum { NOT_LOADED = 9, LOST = 15, VERSION_MISMATCH = 25 };
enum { CARDS = 64, LINES = 4096, POWER_INSTANT = 186 };

typedef struct { char id[16]; } card_t;
typedef struct { double second; const card_t *card; const char *quantity; int count, asked; char *text, **values; } line_t;
typedef struct { uint64_t total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { unsigned pid; uint64_t bytes; unsigned gpu_instance, compute_instance; } process_t;
typedef struct { unsigned version, sensor; int celsius; } temperature_t;
typedef union { double real; unsigned u32; uint64_t u64; } value_t;
typedef struct { unsigned id, scope; int64_t time, latency; unsigned type, result; value_t value; } field_t;

static line_t lines[LINES];
static card_t cards[CARDS], driver = {"-"};
static int line_count, card_count, users;
static double started;
static FILE *answers;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

/* One copy of each name of a quantity: lines are compared by its address, so that an answer costs a small part of a
   reading. Q finds the copy once for each place that asks. */
static const char *interned(const char *name) {
    static const char *names[LINES];
    static int count;
    for (int i = 0; i < count; i++)
        if (!strcmp(names[i], name)) return names[i];
    return names[count++] = strdup(name);
}
#define Q(name) ({ static const char *copy; copy ? copy : (copy = interned(name)); })

static card_t *card_of(const char *id) {
    for (int i = 0; i < card_count; i++)
        if (!strcmp(cards[i].id, id)) return &cards[i];
    return NULL;
}

static card_t *new_card(const char *id) {
    if (card_count == CARDS) abort();
    return strcpy(cards[card_count].id, id), &cards[card_count++];
}

static void read_line(char *text) {
    line_t *line = &lines[line_count];
    char card[16], quantity[64];
    int at = 0;
    text[strcspn(text, "\n")] = 0;
    if (text[0] == '#' || sscanf(text, "%lf %15s %63s %n", &line->second, card, quantity, &at) < 3) return;
    if (++line_count == LINES) abort();
    line->count = line->asked = 0;
    line->card = card[0] == '-' ? &driver : card_of(card) ? card_of(card) : new_card(card);
    line->quantity = quantity[0] == '*' ? Q("*") : interned(quantity);
    line->text = strdup(text + at);
    line->values = calloc(strlen(line->text) + 1, sizeof(char *));
    for (char *rest = strdup(line->text), *word; (word = strsep(&rest, " "));)
        if (*word) line->values[line->count++] = word;
}

/* Read the table that $NVML_TABLE names now, if it is not the one that was read. */
static void read_table(void) {
    static char last[4096];
    const char *path = getenv("NVML_TABLE"), *log = getenv("NVML_ANSWERS");
    FILE *file = path ? fopen(path, "r") : NULL;
    char *text = NULL, name[4096];
    size_t size = 0;
    if (file && strcmp(last, path)) {
        started = now();
        line_count = card_count = 0;
        while (getline(&text, &size, file) > 0) read_line(text);
        snprintf(last, sizeof last, "%s", path);
        free(text);
    }
    if (file) fclose(file);
    else line_count = last[0] = 0;
    if (log && !answers) {
        snprintf(name, sizeof name, "%s.%d", log, getpid());
        answers = fopen(name, "a");
    }
}

/* The line that says a card's quantity now. */
static line_t *find(const card_t *card, const char *quantity) {
    double passed = now() - started;
    for (line_t *line = &lines[line_count - 1]; line >= lines; line--)
        if (line->card == card && (line->quantity == quantity || line->quantity == Q("*")) && line->second <= passed)
            return line;
    return NULL;
}

static int log_answer(const card_t *card, const char *quantity, int result, const char *value) {
    if (answers) fprintf(answers, "%s %s %d %s\n", card->id, quantity, result, value);
    return result;
}

static int ask(card_t *card, const char *quantity, const char **value) {
    line_t *delay, *line;
    if (!users) return UNINITIALIZED;
    if (!card) return INVALID_ARGUMENT;
    if (card != &driver && (delay = find(card, Q("delay_us"))) && delay->text[0] != '!') usleep(atoi(delay->text));
    if (!(line = find(card, quantity))) return log_answer(card, quantity, NOT_SUPPORTED, "-");
    *value = line->count ? line->values[line->asked++ % line->count] : "";
    if (**value == '!') return log_answer(card, quantity, atoi(*value + 1), "-");
    return log_answer(card, quantity, SUCCESS, *value);
}

static int number(card_t *card, const char *quantity, uint64_t *answer) {
    const char *value;
    int result = ask(card, quantity, &value);
    if (result == SUCCESS) *answer = strtoull(value, NULL, 0);
    return result;
}

static int small_number(card_t *card, const char *quantity, unsigned *answer) {
    uint64_t value = 0;
    int result = number(card, quantity, &value);
    if (result == SUCCESS) *answer = (unsigned)value;
    return result;
}

static int words(card_t *card, const char *quantity, char *out, unsigned length) {
    const char *value;
    int result = ask(card, quantity, &value);
    if (result != SUCCESS) return result;
    if (strlen(find(card, quantity)->text) >= length) return INSUFFICIENT_SIZE;
    strcpy(out, find(card, quantity)->text);
    return SUCCESS;
}

__attribute__((destructor)) static void end(void) {
    if (answers) fclose(answers);
}

int nvmlInitWithFlags(unsigned flags) {
    line_t *line;
    (void)flags;
    read_table();
    if (!line_count) return NOT_LOADED;
    if ((line = find(&driver, Q("init"))) && line->text[0] == '!') return atoi(line->text + 1);
    users++;
    return SUCCESS;
}

int nvmlShutdown(void) {
    if (!users) return UNINITIALIZED;
    users--;
    return SUCCESS;
}

const char *nvmlErrorString(int result) {
    return result == LOST ? "GPU is lost" : result ? "Error" : "Success"; /* the bindings know the others themselves */
}

int nvmlSystemGetDriverVersion(char *out, unsigned length) { return words(&driver, Q("driver"), out, length); }

static int is_instance(const card_t *card) { return strchr(card->id, '.') != NULL; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    if (!users) return UNINITIALIZED;
    *count = 0;
    for (int i = 0; i < card_count; i++) *count += !is_instance(&cards[i]);
    return SUCCESS;
}

/* A lost card is counted still, and has no handle. */
int nvmlDeviceGetHandleByIndex_v2(unsigned index, card_t **card) {
    const char *value;
    char id[16];
    int result;
    if (!users) return UNINITIALIZED;
    snprintf(id, sizeof id, "%u", index);
    if (!card_of(id)) return INVALID_ARGUMENT;
    result = ask(card_of(id), Q("uuid"), &value);
    if (result == SUCCESS) *card = card_of(id);
    return result;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, card_t **card) {
    if (!users) return UNINITIALIZED;
    for (int i = 0; i < card_count; i++) {
        line_t *line = find(&cards[i], Q("uuid"));
        if (line && !strcmp(line->text, uuid)) return *card = &cards[i], SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetName(card_t *card, char *out, unsigned length) { return words(card, Q("name"), out, length); }
int nvmlDeviceGetUUID(card_t *card, char *out, unsigned length) { return words(card, Q("uuid"), out, length); }

int nvmlDeviceGetMemoryInfo(card_t *card, memory_t *memory) {
    int result = number(card, Q("memory_total"), &memory->total);
    if (result != SUCCESS) return result;
    result = number(card, Q("memory_used"), &memory->used);
    memory->free = memory->total - memory->used;
    return result;
}

int nvmlDeviceGetUtilizationRates(card_t *card, utilization_t *rates) {
    rates->memory = 0;
    return small_number(card, Q("utilization"), &rates->gpu);
}

/* The error of a function that this driver does not have yet, or has no more; 0 of any other. */
static int refused(const char *function) {
    line_t *line = find(&driver, interned(function));
    return line && line->text[0] == '!' ? atoi(line->text + 1) : SUCCESS;
}

int nvmlDeviceGetTemperature(card_t *card, unsigned sensor, unsigned *celsius) {
    int result = refused(__func__);
    if (result == SUCCESS && sensor) result = INVALID_ARGUMENT;
    return result == SUCCESS ? small_number(card, Q("temperature"), celsius) : result;
}

int nvmlDeviceGetTemperatureV(card_t *card, temperature_t *asked) {
    int result = refused(__func__);
    if (result == SUCCESS && asked->version != (sizeof *asked | 1 << 24)) result = VERSION_MISMATCH;
    return result == SUCCESS ? small_number(card, Q("temperature"), (unsigned *)&asked->celsius) : result;
}

int nvmlDeviceGetClockInfo(card_t *card, unsigned type, unsigned *mhz) {
    return small_number(card, type == 2 ? Q("memory_clock") : Q("sm_clock"), mhz);
}

int nvmlDeviceGetCurrentClocksEventReasons(card_t *card, uint64_t *mask) {
    int result = refused(__func__);
    return result == SUCCESS ? number(card, Q("reasons"), mask) : result;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(card_t *card, uint64_t *mask) {
    int result = refused(__func__);
    return result == SUCCESS ? number(card, Q("reasons"), mask) : result;
}

int nvmlDeviceGetTotalEnergyConsumption(card_t *card, uint64_t *mj) { return number(card, Q("energy"), mj); }
int nvmlDeviceGetEnforcedPowerLimit(card_t *card, unsigned *mw) { return small_number(card, Q("power_limit"), mw); }
int nvmlDeviceGetPowerUsage(card_t *card, unsigned *mw) { return small_number(card, Q("power"), mw); }

/* Each field has a result of its own, as has the whole call on a card that is lost. */
int nvmlDeviceGetFieldValues(card_t *card, int count, field_t *fields) {
    for (int i = 0; i < count; i++) {
        int known = fields[i].id == POWER_INSTANT;
        fields[i].result = known ? small_number(card, Q("power_instant"), &fields[i].value.u32) : NOT_SUPPORTED;
        fields[i].type = 1;
        if (fields[i].result == LOST || fields[i].result == UNINITIALIZED) return fields[i].result;
    }
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(card_t *card, unsigned *count, process_t *out) {
    const char *first;
    int result = ask(card, Q("processes"), &first);
    line_t *line = card ? find(card, Q("processes")) : NULL;
    if (result == NOT_SUPPORTED && !line) return *count = 0, SUCCESS; /* nobody is there */
    if (result != SUCCESS) return result;
    unsigned room = *count;
    *count = line->count;
    if (room < *count) return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < *count; i++) {
        char *bytes = strchr(line->values[i], ':');
        out[i] = (process_t){(unsigned)atoi(line->values[i]), bytes ? strtoull(bytes + 1, NULL, 0) : 0, ~0u, ~0u};
    }
    return SUCCESS;
}

int nvmlDeviceGetMigMode(card_t *card, unsigned *current, unsigned *pending) {
    int result = small_number(card, Q("mig"), current);
    if (result == SUCCESS) *pending = *current;
    return result;
}

int nvmlDeviceGetMaxMigDeviceCount(card_t *card, unsigned *count) {
    if (!users) return UNINITIALIZED;
    *count = find(card, Q("mig")) ? 7 : 0;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(card_t *card, unsigned index, card_t **instance) {
    char id[32];
    if (!users) return UNINITIALIZED;
    snprintf(id, sizeof id, "%s.%u", card->id, index);
    *instance = card_of(id);
    return *instance ? SUCCESS : NOT_FOUND;
}
