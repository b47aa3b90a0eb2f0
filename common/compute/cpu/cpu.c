#include "common/compute/cpu/cpu.h"

#include "common/compute/cpu/cpu_tables.h"

#include <pthread.h>

#ifdef OD_X86_TABLES
#include <cpuid.h>
#endif
#ifdef OD_ARM_TABLES
#include <sys/auxv.h>
#endif

const char *const od_cpu_names[] = { "auto", "scalar", "avx2", "avx512", "avx512bf16", "neon", NULL };
const char *const od_profile_names[] = { "f32", "bf16", NULL };

/* ---- What the processor has ---- */

#ifdef OD_X86_TABLES
/* Not all compilers know the name. */
static bool has_f16c(void)
{
	unsigned a, b, c, d;

	return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

/* The compiler's runtime also asks whether the kernel saves the wide registers (XGETBV). */
struct od_cpu_features od_cpu_features(void)
{
	struct od_cpu_features f = {
		.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(),
	};

	f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
		   __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
	f.vnni = f.avx512 && __builtin_cpu_supports("avx512vnni");
	f.vbmi2 = f.avx512 && __builtin_cpu_supports("avx512vbmi2") && __builtin_cpu_supports("avx512vbmi") &&
		  __builtin_cpu_supports("gfni");
	f.bf16 = f.avx512 && __builtin_cpu_supports("avx512bf16");
	return f;
}
#elif defined(OD_ARM_TABLES)
struct od_cpu_features od_cpu_features(void)
{
	return (struct od_cpu_features){ .neon = true, /* part of every aarch64 */
					 .neon_dot = (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0 };
}
#else
struct od_cpu_features od_cpu_features(void)
{
	return (struct od_cpu_features){ 0 };
}
#endif

bool od_cpu_has(const struct od_cpu_features *f, enum od_cpu cpu)
{
	switch (cpu) {
	case OD_CPU_AUTO: return true;
	case OD_CPU_SCALAR: return true;
	case OD_CPU_AVX2: return f->avx2;
	case OD_CPU_AVX512: return f->avx512;
	case OD_CPU_AVX512_BF16: return f->bf16;
	case OD_CPU_NEON: return f->neon;
	}
	return false;
}

static const char *needs(enum od_cpu cpu)
{
	switch (cpu) {
	case OD_CPU_AUTO: return "";
	case OD_CPU_SCALAR: return "";
	case OD_CPU_AVX2: return "AVX2, FMA and F16C";
	case OD_CPU_AVX512: return "AVX-512 F, BW, VL and DQ";
	case OD_CPU_AVX512_BF16: return "AVX-512 F, BW, VL, DQ and BF16";
	case OD_CPU_NEON: return "aarch64 and NEON";
	}
	return "";
}

/* ---- Tables ---- */

#ifdef OD_X86_TABLES
static void put_x86(struct od_backend *t, enum od_cpu cpu, const struct od_cpu_features *f)
{
	od_cpu_put_avx2(t);
	/* AVX-512 finds NF4's values by one instruction, and then rounding rows costs more than it saves
	 * (BENCHMARKS.md). */
	t->nf4_likes_int8 = cpu == OD_CPU_AVX2;
	if (cpu == OD_CPU_AVX2)
		return;
	od_cpu_put_avx512(t);
	if (f->vnni)
		od_cpu_put_avx512vnni(t);
	if (f->vbmi2)
		od_cpu_put_avx512vbmi2(t);
	if (cpu == OD_CPU_AVX512)
		return;
	od_cpu_put_avx512bf16(t);
	if (f->vbmi2)
		od_cpu_put_avx512bf16vbmi2(t);
	t->kernel_class = OD_CLASS_BF16DOT;
}
#endif

struct od_backend od_cpu_table(enum od_cpu cpu, const struct od_cpu_features *f)
{
	struct od_backend t = { .name = od_cpu_names[cpu], .kernel_class = OD_CLASS_FMA16 };

	(void)f;
	if (cpu == OD_CPU_SCALAR)
		od_cpu_put_scalar(&t);
#ifdef OD_X86_TABLES
	if (cpu == OD_CPU_AVX2 || cpu == OD_CPU_AVX512 || cpu == OD_CPU_AVX512_BF16)
		put_x86(&t, cpu, f);
#endif
#ifdef OD_ARM_TABLES
	if (cpu == OD_CPU_NEON) {
		od_cpu_put_neon(&t);
		if (f->neon_dot)
			od_cpu_put_neondot(&t);
	}
#endif
	return t;
}

static pthread_once_t composed = PTHREAD_ONCE_INIT;
static struct od_cpu_features features;
static struct od_backend tables[OD_CPU_NEON + 1]; /* filled for supported instruction sets only */

static void compose(void)
{
	features = od_cpu_features();
	for (enum od_cpu cpu = OD_CPU_SCALAR; cpu <= OD_CPU_NEON; cpu++)
		if (od_cpu_has(&features, cpu))
			tables[cpu] = od_cpu_table(cpu, &features);
}

int od_backend_cpu(const struct od_backend **out, enum od_cpu cpu, enum od_profile profile, struct od_err *err)
{
	*out = NULL;
	if ((unsigned)cpu > OD_CPU_NEON)
		return od_fail(err, OD_ERR_ARG, "cpu kernels: unknown choice %d", (int)cpu);
	if (pthread_once(&composed, compose) != 0)
		return od_fail(err, OD_ERR_INTERNAL, "cpu kernels: pthread_once");
	if (cpu == OD_CPU_AUTO) {
		for (cpu = OD_CPU_NEON; !od_cpu_has(&features, cpu); cpu--)
			continue;
	}
	if (!od_cpu_has(&features, cpu))
		return od_fail(err, OD_ERR_UNSUPPORTED, "cpu kernels %s: this CPU or operating system lacks some of %s",
			       od_cpu_names[cpu], needs(cpu));
	/* BF16 dot instructions round differently; conformance must not depend on having them. */
	if (cpu == OD_CPU_AVX512_BF16 && profile == OD_PROFILE_F32)
		cpu = OD_CPU_AVX512;
	*out = &tables[cpu];
	return OD_OK;
}
