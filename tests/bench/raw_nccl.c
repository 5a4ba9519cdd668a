/* Raw NCCL, for comparison with the live test: one process per GPU, eager and CUDA-graph times of one collective.
 *
 *     raw_nccl LIBCUDART LIBNCCL RANKS OP SIZE...      OP: all_reduce, all_to_all, send_recv
 *
 * Prints one line per size: bytes, eager microseconds, graph microseconds (0 above 1 MiB).  The method is the live
 * test's own (ncclkit/agent/run/collective.py): batches of back-to-back calls between two events, the median batch, the
 * mean over the ranks.  Both libraries are opened by name, so that no CUDA headers are needed to build it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { REPEATS = 15, WARMUP = 5, CAPTURED = 20, MOST = 16, LIMIT = 1 << 20 };
static const double BATCH_US = 20000;

typedef struct { char bytes[128]; } Id;
typedef struct { pthread_barrier_t barrier; Id id; double eager[MOST], graph[MOST], once[MOST]; } Shared;
typedef void *P;

#define CUDA(X) \
    X(cudaSetDevice, (int)) X(cudaMalloc, (P *, size_t)) X(cudaMemset, (P, int, size_t)) X(cudaFree, (P)) \
    X(cudaDeviceSynchronize, (void)) X(cudaStreamCreateWithFlags, (P *, unsigned)) \
    X(cudaEventCreate, (P *)) X(cudaEventRecord, (P, P)) X(cudaEventSynchronize, (P)) \
    X(cudaEventElapsedTime, (float *, P, P)) X(cudaStreamBeginCapture, (P, int)) X(cudaStreamEndCapture, (P, P *)) \
    X(cudaGraphInstantiate, (P *, P, unsigned long long)) X(cudaGraphLaunch, (P, P)) \
    X(cudaGraphExecDestroy, (P)) X(cudaGraphDestroy, (P))
#define NCCL(X) \
    X(ncclGetUniqueId, (Id *)) X(ncclCommInitRank, (P *, int, Id, int)) X(ncclCommDestroy, (P)) \
    X(ncclGroupStart, (void)) X(ncclGroupEnd, (void)) \
    X(ncclAllReduce, (const void *, P, size_t, int, int, P, P)) \
    X(ncclSend, (const void *, size_t, int, int, P, P)) X(ncclRecv, (P, size_t, int, int, P, P))
#define DECLARE(name, args) static int(*name) args;
CUDA(DECLARE) NCCL(DECLARE)

#define OK(call) do { int code = (call); if (code) { \
    fprintf(stderr, "%s: error %d\n", #call, code); _exit(1); } } while (0)

enum { FLOAT = 7, SUM = 0 };
static int rank, ranks;
static const char *op;
static P comm, stream, given, got, first, last;

static void call(size_t count) {
    if (!strcmp(op, "all_reduce")) {
        OK(ncclAllReduce(given, given, count, FLOAT, SUM, comm, stream));
        return;
    }
    OK(ncclGroupStart());
    if (!strcmp(op, "send_recv")) {
        OK(ncclSend(given, count, FLOAT, (rank + 1) % ranks, comm, stream));
        OK(ncclRecv(got, count, FLOAT, (rank + ranks - 1) % ranks, comm, stream));
    } else {
        size_t part = count / ranks;
        for (int peer = 0; peer < ranks; peer++) {
            OK(ncclSend((char *)given + peer * part * 4, part, FLOAT, peer, comm, stream));
            OK(ncclRecv((char *)got + peer * part * 4, part, FLOAT, peer, comm, stream));
        }
    }
    OK(ncclGroupEnd());
}

/* Microseconds of a batch: `calls` calls, or one launch of `graph` where there is one. */
static double batch(Shared *all, size_t count, int calls, P graph) {
    float ms;
    OK(cudaDeviceSynchronize());
    pthread_barrier_wait(&all->barrier);
    OK(cudaEventRecord(first, stream));
    if (graph) OK(cudaGraphLaunch(graph, stream));
    else for (int i = 0; i < calls; i++) call(count);
    OK(cudaEventRecord(last, stream));
    OK(cudaEventSynchronize(last));
    OK(cudaEventElapsedTime(&ms, first, last));
    return ms * 1e3;
}

static int smaller(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(Shared *all, size_t count, int calls, P graph) {
    double times[REPEATS];
    for (int i = 0; i < REPEATS; i++) times[i] = batch(all, count, calls, graph);
    qsort(times, REPEATS, sizeof *times, smaller);
    return times[REPEATS / 2] / (graph ? CAPTURED : calls);
}

static double replayed(Shared *all, size_t count) {
    P graph, ready;
    OK(cudaStreamBeginCapture(stream, 1));
    for (int i = 0; i < CAPTURED; i++) call(count);
    OK(cudaStreamEndCapture(stream, &graph));
    OK(cudaGraphInstantiate(&ready, graph, 0));
    batch(all, count, 1, ready);
    double us = median(all, count, 1, ready);
    OK(cudaGraphExecDestroy(ready));
    OK(cudaGraphDestroy(graph));
    return us;
}

static void measure(Shared *all, size_t bytes) {
    size_t count = bytes / 4 ? bytes / 4 : 1;
    OK(cudaMalloc(&given, bytes));
    OK(cudaMalloc(&got, bytes));
    OK(cudaMemset(given, 0, bytes));
    for (int i = 0; i < WARMUP; i++) all->once[rank] = batch(all, count, 1, NULL);
    pthread_barrier_wait(&all->barrier);
    double slowest = 0; /* every rank must make the same number of calls */
    for (int i = 0; i < ranks; i++) if (all->once[i] > slowest) slowest = all->once[i];
    int calls = BATCH_US / slowest < 1 ? 1 : BATCH_US / slowest > 20 ? 20 : (int)(BATCH_US / slowest);
    all->eager[rank] = median(all, count, calls, NULL);
    all->graph[rank] = bytes <= LIMIT ? replayed(all, count) : 0;
    pthread_barrier_wait(&all->barrier);
    if (rank == 0) {
        double eager = 0, graph = 0;
        for (int i = 0; i < ranks; i++) eager += all->eager[i] / ranks, graph += all->graph[i] / ranks;
        printf("%zu %.3f %.3f\n", bytes, eager, graph);
        fflush(stdout);
    }
    pthread_barrier_wait(&all->barrier);
    OK(cudaFree(given));
    OK(cudaFree(got));
}

int main(int argc, char **argv) {
    if (argc < 6 || (ranks = atoi(argv[3])) < 2 || ranks > MOST) return 2;
    op = argv[4];
    Shared *all = mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t attribute;
    pthread_barrierattr_init(&attribute);
    pthread_barrierattr_setpshared(&attribute, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&all->barrier, &attribute, ranks);
    for (rank = 0; rank < ranks - 1; rank++) if (!fork()) break; /* before anything touches CUDA */
    if (rank < ranks - 1) prctl(PR_SET_PDEATHSIG, SIGKILL); /* whatever happens, nobody is left behind */
    P cudart = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL), nccl = dlopen(argv[2], RTLD_NOW | RTLD_GLOBAL);
    if (!cudart || !nccl) { fprintf(stderr, "%s\n", dlerror()); return 1; }
#define FROM_CUDA(name, args) if (!(*(P *)&name = dlsym(cudart, #name))) { fprintf(stderr, "no %s\n", #name); return 1; }
#define FROM_NCCL(name, args) if (!(*(P *)&name = dlsym(nccl, #name))) { fprintf(stderr, "no %s\n", #name); return 1; }
    CUDA(FROM_CUDA) NCCL(FROM_NCCL)
    OK(cudaSetDevice(rank));
    if (rank == 0) OK(ncclGetUniqueId(&all->id));
    pthread_barrier_wait(&all->barrier);
    OK(ncclCommInitRank(&comm, ranks, all->id, rank));
    OK(cudaStreamCreateWithFlags(&stream, 1));
    OK(cudaEventCreate(&first));
    OK(cudaEventCreate(&last));
    for (int i = 5; i < argc; i++) measure(all, strtoull(argv[i], NULL, 10));
    OK(ncclCommDestroy(comm));
    if (rank < ranks - 1) _exit(0); /* the children; the parent is the last rank */
    int status, bad = 0;
    while (wait(&status) > 0) bad |= status;
    return bad != 0;
}
