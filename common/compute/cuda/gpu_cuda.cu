/* A GPU by CUDA's runtime (12.2 and newer). Its own context is the process's primary one; every call sets the GPU
 * first, as the caller may be any thread. */
#include <cuda.h>
#include <cuda_runtime.h>

#include <new>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/compute/cuda/gpu_graphs.h"

#define LEAST_MAJOR 7
#define LEAST_MINOR 5
/* cudaMalloc's page, from Pascal on; no call tells it (github.com/pytorch/pytorch/pull/17120). */
#define PAGE_BYTES (2u << 20)

/* The driver's calls for addresses and memory apart. This program is not linked with the driver, so that it starts
 * without one. */
struct memory_calls {
	decltype(&cuDeviceGetAttribute) attribute;
	decltype(&cuMemGetAllocationGranularity) granularity;
	decltype(&cuMemAddressReserve) reserve;
	decltype(&cuMemAddressFree) unreserve;
	decltype(&cuMemCreate) create;
	decltype(&cuMemRelease) release;
	decltype(&cuMemMap) map;
	decltype(&cuMemUnmap) unmap;
	decltype(&cuMemSetAccess) set_access;
};

struct gpu {
	int index;
	struct memory_calls call; /* with about.granule_bytes */
	struct gpu_about about;
	bool waits; /* its kernels wait for what they follow (gpu_after_previous) */
};

struct gpu_stream {
	struct gpu *g;
	cudaStream_t stream;
	struct gpu_graphs *graphs; /* NULL: it does not gather */
};

struct gpu_graph {
	struct gpu *g;
	cudaGraphExec_t exec;
};

struct gpu_event {
	struct gpu *g;
	cudaEvent_t event;
};

extern "C" const char *gpu_error(int error)
{
	return cudaGetErrorString((cudaError_t)error);
}

extern "C" bool gpu_lacks_memory(int error)
{
	return error == cudaErrorMemoryAllocation; /* the driver's CUDA_ERROR_OUT_OF_MEMORY has the same number */
}

static int use(const struct gpu *g)
{
	return cudaSetDevice(g->index);
}

/* ---- life ---- */

static int no_gpu(struct od_err *err, cudaError_t error, int found, unsigned index)
{
	int driver = 0;

	(void)cudaDriverGetVersion(&driver);
	if (driver == 0 && error != cudaSuccess)
		return od_fail(err, OD_ERR_UNSUPPORTED, "cuda:%u: no NVIDIA driver is installed", index);
	if (error == cudaErrorInsufficientDriver || (driver > 0 && driver < CUDART_VERSION / 1000 * 1000))
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"cuda:%u: the driver is too old: it supports CUDA %d.%d, and this program needs %d.0; "
			"update the NVIDIA driver, or build the plugin with an older CUDA toolkit (12.2 or newer)",
			index, driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000);
	/* A Jetson's driver says "not supported" to a user who may not open its device files. */
	if (error == cudaErrorNoDevice || error == cudaErrorNotSupported || (error == cudaSuccess && found == 0))
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "cuda:%u: this machine has no GPU that CUDA can use, or its device files are closed to "
			       "this user (a service needs gpu.conf: README, \"As services\")",
			       index);
	if (error != cudaSuccess)
		return od_fail(err, OD_ERR_UNSUPPORTED, "cuda:%u: %s", index, cudaGetErrorString(error));
	return od_fail(err, OD_ERR_UNSUPPORTED, "cuda:%u: there is no such GPU; expected cuda:0%s%.0d", index,
		       found > 1 ? " to cuda:" : "", found > 1 ? found - 1 : 0);
}

/* An empty kernel tells whether there is code for the GPU. */
static __global__ void probe(void)
{
}

/* 0: this GPU has no such number. */
static uint64_t attribute_of(const struct gpu *g, enum cudaDeviceAttr which)
{
	int value = 0;

	if (cudaDeviceGetAttribute(&value, which, g->index) == cudaSuccess && value > 0)
		return (uint64_t)value;
	(void)cudaGetLastError();
	return 0;
}

/* Memory moves data at both edges of its clock. CUDA does not know the memory of a GPU that shares the host's: for an
 * AGX Orin it says 1.3 GHz and 128 bits, where there are 3.2 GHz and 256 bits (github.com/intel/llvm/pull/8418). */
static void look_at_speed(struct gpu *g, bool integrated)
{
	const uint64_t memory_hz = 1000 * attribute_of(g, cudaDevAttrMemoryClockRate),
		       bus_bytes = attribute_of(g, cudaDevAttrGlobalMemoryBusWidth) / 8;

	g->about.clock_hz = 1000 * attribute_of(g, cudaDevAttrClockRate);
	g->about.cache_bytes = attribute_of(g, cudaDevAttrL2CacheSize);
	if (!integrated)
		g->about.memory_bytes_per_s = 2 * memory_hz * bus_bytes;
}

template <typename function> static bool find_call(function *out, const char *name)
{
	enum cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
	void *call = NULL;
#if CUDART_VERSION >= 12050
	const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &call, 12000, cudaEnableDefault, &found);
#else
	const cudaError_t error = cudaGetDriverEntryPoint(name, &call, cudaEnableDefault, &found);
#endif

	*out = (function)call;
	return error == cudaSuccess && found == cudaDriverEntryPointSuccess && call != NULL;
}

static CUmemAllocationProp where(const struct gpu *g)
{
	CUmemAllocationProp p = {};

	p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
	p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
	p.location.id = g->index;
	return p;
}

static bool find_calls(struct memory_calls *c)
{
	return find_call(&c->attribute, "cuDeviceGetAttribute") &&
	       find_call(&c->granularity, "cuMemGetAllocationGranularity") &&
	       find_call(&c->reserve, "cuMemAddressReserve") && find_call(&c->unreserve, "cuMemAddressFree") &&
	       find_call(&c->create, "cuMemCreate") && find_call(&c->release, "cuMemRelease") &&
	       find_call(&c->map, "cuMemMap") && find_call(&c->unmap, "cuMemUnmap") &&
	       find_call(&c->set_access, "cuMemSetAccess");
}

/* Some virtual machines, and GPUs with the host's memory, cannot do it. */
static uint64_t find_granule(struct gpu *g)
{
	const CUmemAllocationProp p = where(g);
	size_t granule = 0;
	int can = 0;

	if (!find_calls(&g->call) ||
	    g->call.attribute(&can, CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, g->index) !=
		    CUDA_SUCCESS ||
	    can == 0 || g->call.granularity(&granule, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS) {
		(void)cudaGetLastError();
		return 0;
	}
	return granule;
}

static int look_at(struct gpu *g, struct od_err *err)
{
	struct cudaDeviceProp p;
	cudaFuncAttributes attributes;
	cudaError_t error = cudaGetDeviceProperties(&p, g->index);
	const bool new_enough =
		error == cudaSuccess && (p.major > LEAST_MAJOR || (p.major == LEAST_MAJOR && p.minor >= LEAST_MINOR));

	if (new_enough)
		error = cudaSetDevice(g->index);
	if (new_enough && error == cudaSuccess)
		error = cudaFree(NULL); /* makes the context, and loads the kernels */
	if (error != cudaSuccess && error != cudaErrorNoKernelImageForDevice)
		return od_fail(err, error == cudaErrorMemoryAllocation ? OD_ERR_NOMEM : OD_ERR_UNSUPPORTED,
			       "cuda:%d: %s", g->index, cudaGetErrorString(error));
	snprintf(g->about.name, sizeof(g->about.name), "%s", p.name);
	g->about.major = (unsigned)p.major;
	g->about.minor = (unsigned)p.minor;
	g->about.n_sm = (unsigned)p.multiProcessorCount;
	g->about.page_bytes = PAGE_BYTES;
	look_at_speed(g, p.integrated != 0);
	g->about.unified = p.integrated && p.canMapHostMemory && p.unifiedAddressing;
	if (!new_enough)
		return od_fail(err, OD_ERR_UNSUPPORTED,
			       "cuda:%d: %s has compute capability %d.%d; expected %d.%d or newer", g->index, p.name,
			       p.major, p.minor, LEAST_MAJOR, LEAST_MINOR);
	if (error != cudaSuccess || cudaFuncGetAttributes(&attributes, probe) != cudaSuccess)
		return od_fail(
			err, OD_ERR_UNSUPPORTED,
			"cuda:%d: %s has compute capability %d.%d, for which this build has no kernels; build the "
			"plugin for it, too (make CUDA=1, without CUDA_ARCHS)",
			g->index, p.name, p.major, p.minor);
	/* Kernels of older PTX have no wait: begun early, they would read before the one they follow has written. */
	g->waits = p.major >= 9 && attributes.ptxVersion >= 90;
	if (!p.integrated)
		g->about.granule_bytes = find_granule(g);
	return OD_OK;
}

extern "C" int gpu_open(struct gpu **out, unsigned index, struct od_err *err)
{
	struct gpu *g;
	cudaError_t error;
	int found = 0, rc;

	*out = NULL;
	/* CUDA reads it at its first call. By default a kernel is loaded, and on a GPU newer than this build compiled,
	 * at its first launch: in the middle of a step, which waits for it, and with memory that no plan has
	 * counted. */
	(void)setenv("CUDA_MODULE_LOADING", "EAGER", 0);
	error = cudaGetDeviceCount(&found);
	if (error != cudaSuccess || index >= (unsigned)found)
		return no_gpu(err, error, found, index);
	g = new (std::nothrow) struct gpu();
	if (g == NULL)
		return od_fail(err, OD_ERR_NOMEM, "cuda:%u", index);
	g->index = (int)index;
	rc = look_at(g, err);
	if (rc != OD_OK) {
		delete g;
		return rc;
	}
	*out = g;
	return OD_OK;
}

extern "C" void gpu_close(struct gpu *g)
{
	delete g;
}

extern "C" void gpu_look(struct gpu *g, struct gpu_about *about)
{
	size_t free_bytes = 0, total = 0;

	*about = g->about;
	if (use(g) == cudaSuccess && cudaMemGetInfo(&free_bytes, &total) == cudaSuccess) {
		about->free_bytes = free_bytes;
		about->total_bytes = total;
	}
}

/* ---- memory ---- */

extern "C" void *gpu_alloc(struct gpu *g, uint64_t bytes)
{
	void *at = NULL;

	if (use(g) != cudaSuccess || cudaMalloc(&at, bytes > 0 ? bytes : 1) != cudaSuccess) {
		(void)cudaGetLastError(); /* it is told by NULL, and not once more */
		return NULL;
	}
	/* Memory is cleared in CUDA's own stream, for which the others do not wait: so the zeros are awaited here. */
	if (cudaMemset(at, 0, bytes) != cudaSuccess || cudaStreamSynchronize(cudaStreamLegacy) != cudaSuccess) {
		(void)cudaFree(at);
		return NULL;
	}
	return at;
}

extern "C" void gpu_free(struct gpu *g, void *at)
{
	if (at != NULL && use(g) == cudaSuccess)
		(void)cudaFree(at);
}

/* CUDA's memory may begin within a page, so a page more is asked for, and one in front, which ends with CUDA's
 * address. It is pinned: copies from and to other memory go through a buffer of the driver's, for which the caller
 * waits. */
extern "C" void *gpu_alloc_host(struct gpu *g, uint64_t bytes)
{
	void *begin = NULL;
	char *at;

	if (bytes > UINT64_MAX / 2 || use(g) != cudaSuccess ||
	    cudaHostAlloc(&begin, bytes + 2 * OD_PAGE_BYTES, cudaHostAllocPortable | cudaHostAllocMapped) !=
		    cudaSuccess) {
		(void)cudaGetLastError();
		return NULL;
	}
	at = (char *)begin + OD_PAGE_BYTES;
	at += (OD_PAGE_BYTES - (uintptr_t)at % OD_PAGE_BYTES) % OD_PAGE_BYTES;
	((void **)(void *)at)[-1] = begin;
	memset(at, 0, bytes);
	return at;
}

extern "C" void gpu_free_host(struct gpu *g, void *at)
{
	if (at != NULL && use(g) == cudaSuccess)
		(void)cudaFreeHost(((void **)at)[-1]);
}

extern "C" void *gpu_reserve(struct gpu *g, uint64_t bytes)
{
	CUdeviceptr at = 0;

	if (use(g) != cudaSuccess || g->call.reserve(&at, bytes, 0, 0, 0) != CUDA_SUCCESS)
		return NULL;
	return (void *)at;
}

extern "C" void gpu_unreserve(struct gpu *g, void *at, uint64_t bytes)
{
	if (use(g) == cudaSuccess)
		(void)g->call.unreserve((CUdeviceptr)at, bytes);
}

/* Each granule is an allocation of its own, so that any run of them can be released. The mapping alone keeps it. */
static CUresult commit_granule(struct gpu *g, CUdeviceptr at)
{
	const CUmemAllocationProp p = where(g);
	CUmemGenericAllocationHandle memory;
	CUresult error = g->call.create(&memory, g->about.granule_bytes, &p, 0);

	if (error != CUDA_SUCCESS)
		return error;
	error = g->call.map(at, g->about.granule_bytes, 0, memory, 0);
	(void)g->call.release(memory);
	return error;
}

extern "C" int gpu_commit(struct gpu *g, void *at, uint64_t bytes)
{
	const CUdeviceptr begin = (CUdeviceptr)at;
	CUmemAccessDesc access = {};
	CUresult error = (CUresult)use(g); /* the numbers of the runtime's errors are the driver's */
	uint64_t n = 0;

	for (; error == CUDA_SUCCESS && n < bytes; n += error == CUDA_SUCCESS ? g->about.granule_bytes : 0)
		error = commit_granule(g, begin + n);
	access.location = where(g).location;
	access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	if (error == CUDA_SUCCESS)
		error = g->call.set_access(begin, bytes, &access, 1);
	if (error != CUDA_SUCCESS && n > 0)
		(void)g->call.unmap(begin, n);
	return error;
}

extern "C" void gpu_release(struct gpu *g, void *at, uint64_t bytes)
{
	if (use(g) == cudaSuccess)
		(void)g->call.unmap((CUdeviceptr)at, bytes);
}

/* ---- streams ---- */

extern "C" int gpu_stream_new(struct gpu_stream **out, struct gpu *g, bool gathers)
{
	struct gpu_stream *s = new (std::nothrow) struct gpu_stream();
	cudaError_t error = s == NULL ? cudaErrorMemoryAllocation : (cudaError_t)use(g);

	*out = NULL;
	/* not blocking: a blocking one would stop whenever some thread clears memory (gpu_alloc) */
	if (error == cudaSuccess)
		error = cudaStreamCreateWithFlags(&s->stream, cudaStreamNonBlocking);
	if (error != cudaSuccess) {
		delete s;
		return error;
	}
	s->g = g;
	s->graphs = gathers ? gpu_graphs_new(s) : NULL;
	if (gathers && s->graphs == NULL) {
		gpu_stream_free(s);
		return cudaErrorMemoryAllocation;
	}
	*out = s;
	return cudaSuccess;
}

extern "C" void gpu_stream_free(struct gpu_stream *s)
{
	if (s == NULL)
		return;
	gpu_graphs_free(s->graphs);
	if (use(s->g) == cudaSuccess)
		(void)cudaStreamDestroy(s->stream);
	delete s;
}

/* Before the stream is given anything but launches. After an error events can still be recorded and waited for. */
static int make_ready(struct gpu_stream *s)
{
	const int flushed = gpu_graphs_flush(s->graphs), error = use(s->g);

	return flushed != cudaSuccess ? flushed : error;
}

extern "C" int gpu_copy(struct gpu_stream *s, void *to, const void *from, uint64_t n, enum gpu_way way)
{
	static const cudaMemcpyKind kinds[] = { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost,
						cudaMemcpyDeviceToDevice };
	const int error = make_ready(s);

	/* Memory of a unified GPU is the host's for the one and the GPU's for the other: the addresses tell. */
	return error != cudaSuccess ?
		       error :
		       cudaMemcpyAsync(to, from, n, s->g->about.unified ? cudaMemcpyDefault : kinds[way], s->stream);
}

extern "C" int gpu_start(struct gpu_stream *s, const struct gpu_launch *l, bool follows)
{
	const int error = use(s->g);
	void *args[1] = { (void *)l->args };
	cudaLaunchAttribute early = {};
	cudaLaunchConfig_t config = {};

	early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
	early.val.programmaticStreamSerializationAllowed = 1;
	config.gridDim = dim3(l->grid.x, l->grid.y, l->grid.z);
	config.blockDim = dim3(l->kernel->n_threads, 1, 1);
	config.dynamicSmemBytes = l->shared;
	config.stream = s->stream;
	config.attrs = &early;
	config.numAttrs = follows && s->g->waits ? 1 : 0;
	return error != cudaSuccess ? error : cudaLaunchKernelExC(&config, (const void *)l->kernel->function, args);
}

extern "C" int gpu_launch(struct gpu_stream *s, const struct gpu_launch *l)
{
	return s->graphs != NULL ? gpu_graphs_add(s->graphs, l) : gpu_start(s, l, false);
}

extern "C" void gpu_stream_resume(struct gpu_stream *s)
{
	gpu_graphs_resume(s->graphs);
}

extern "C" const char *gpu_failed_kernel(struct gpu_stream *s)
{
	return gpu_graphs_failed(s->graphs);
}

extern "C" bool gpu_last_launch(struct gpu_stream *s, const char *kernel, struct gpu_launch *l)
{
	return gpu_graphs_last(s->graphs, kernel, l);
}

extern "C" void gpu_take_back(struct gpu_stream *s)
{
	gpu_graphs_take_back(s->graphs);
}

/* ---- graphs ---- */

/* early: the node may be prepared while the one before it ends, as with gpu_start's attribute; before CUDA 12.3 it is
 * not. */
static cudaError_t put_after(cudaGraph_t graph, cudaGraphNode_t before, cudaGraphNode_t node, bool early)
{
#if CUDART_VERSION >= 12030
	cudaGraphEdgeData edge = {};

	edge.from_port = cudaGraphKernelNodePortProgrammatic;
	edge.type = cudaGraphDependencyTypeProgrammatic;
#endif
#if CUDART_VERSION >= 13000
	return cudaGraphAddDependencies(graph, &before, &node, early ? &edge : NULL, 1);
#else
#if CUDART_VERSION >= 12030
	if (early)
		return cudaGraphAddDependencies_v2(graph, &before, &node, &edge, 1);
#endif
	(void)early;
	return cudaGraphAddDependencies(graph, &before, &node, 1);
#endif
}

static cudaError_t make_graph(cudaGraph_t graph, const struct gpu_launch *l, unsigned n, bool early)
{
	cudaGraphNode_t node = NULL;
	cudaError_t error = cudaSuccess;

	/* A chain: a kernel may read what any before it has written. An edge to the last one is enough, as that
	 * has waited for its own, early or not. */
	for (unsigned i = 0; error == cudaSuccess && i < n; i++) {
		const cudaGraphNode_t before = node;
		void *args[1] = { (void *)l[i].args };
		cudaKernelNodeParams p = {};

		p.func = (void *)l[i].kernel->function;
		p.gridDim = dim3(l[i].grid.x, l[i].grid.y, l[i].grid.z);
		p.blockDim = dim3(l[i].kernel->n_threads, 1, 1);
		p.sharedMemBytes = (unsigned)l[i].shared;
		p.kernelParams = args;
		error = cudaGraphAddKernelNode(&node, graph, NULL, 0, &p);
		if (error == cudaSuccess && i > 0)
			error = put_after(graph, before, node, early);
	}
	return error;
}

extern "C" int gpu_graph_new(struct gpu_graph **out, struct gpu_stream *s, const struct gpu_launch *l, unsigned n)
{
	struct gpu_graph *g = new (std::nothrow) struct gpu_graph();
	cudaError_t error = g == NULL ? cudaErrorMemoryAllocation : (cudaError_t)use(s->g);
	cudaGraph_t graph = NULL;

	*out = NULL;
	if (error == cudaSuccess)
		error = cudaGraphCreate(&graph, 0);
	if (error == cudaSuccess)
		error = make_graph(graph, l, n, s->g->waits);
	if (error == cudaSuccess)
		error = cudaGraphInstantiate(&g->exec, graph, 0);
	/* takes its memory now: without, its first launch would fail, and with that the step */
	if (error == cudaSuccess)
		error = cudaGraphUpload(g->exec, s->stream);
	if (graph != NULL)
		(void)cudaGraphDestroy(graph);
	if (error != cudaSuccess) {
		(void)cudaGetLastError(); /* launches can do without the graph */
		if (g != NULL && g->exec != NULL)
			(void)cudaGraphExecDestroy(g->exec);
		delete g;
		return error;
	}
	g->g = s->g;
	*out = g;
	return cudaSuccess;
}

extern "C" int gpu_graph_start(struct gpu_stream *s, struct gpu_graph *g)
{
	const int error = use(s->g);

	return error != cudaSuccess ? error : cudaGraphLaunch(g->exec, s->stream);
}

extern "C" void gpu_graph_free(struct gpu_graph *g)
{
	if (g == NULL)
		return;
	if (use(g->g) == cudaSuccess)
		(void)cudaGraphExecDestroy(g->exec);
	delete g;
}

/* ---- events ---- */

extern "C" int gpu_event_new(struct gpu_event **out, struct gpu *g, bool sleeps)
{
	struct gpu_event *e = new (std::nothrow) struct gpu_event();
	cudaError_t error = e == NULL ? cudaErrorMemoryAllocation : (cudaError_t)use(g);

	*out = NULL;
	if (error == cudaSuccess)
		error = cudaEventCreateWithFlags(&e->event,
						 cudaEventDisableTiming | (sleeps ? cudaEventBlockingSync : 0));
	if (error != cudaSuccess) {
		delete e;
		return error;
	}
	e->g = g;
	*out = e;
	return cudaSuccess;
}

extern "C" void gpu_event_free(struct gpu_event *e)
{
	if (e == NULL)
		return;
	if (use(e->g) == cudaSuccess)
		(void)cudaEventDestroy(e->event);
	delete e;
}

/* Recorded even after an error: or else who waits for it does not wait for what the stream was given before. */
extern "C" int gpu_event_record(struct gpu_event *e, struct gpu_stream *s)
{
	const int before = make_ready(s), error = cudaEventRecord(e->event, s->stream);

	return before != cudaSuccess ? before : error;
}

extern "C" int gpu_event_wait(struct gpu_event *e)
{
	const int error = use(e->g);

	return error != cudaSuccess ? error : cudaEventSynchronize(e->event);
}

extern "C" int gpu_stream_after(struct gpu_stream *s, struct gpu_event *e) /* after an error, too */
{
	const int before = make_ready(s), error = cudaStreamWaitEvent(s->stream, e->event, 0);

	return before != cudaSuccess ? before : error;
}
