/* Paths that clients know from other servers, for what nothing here does. Each is refused with 501 and the reason: a
 * 404 would look like a wrong address. */
#include "main-node/serve/api/api.h"

#define EMBEDDINGS "embeddings are not made here: the model only writes text"
#define RANKS "documents are not ranked here: the model only writes text"
#define MODELS "models are not managed here: they are made by od-pack, and od-main serve serves one"

#define OPENAI(of_path, why) \
	{ \
		.method = "POST", .path = of_path, .refusal = why \
	}
#define OLLAMA(of_method, of_path, why) \
	{ \
		.method = of_method, .path = of_path, .flags = ODM_ENDPOINT_OLLAMA, .refusal = why \
	}

const struct odm_endpoint odm_refused_endpoints[ODM_N_REFUSED] = {
	OPENAI("/v1/embeddings", EMBEDDINGS),
	OPENAI("/embeddings", EMBEDDINGS),
	OPENAI("/embedding", EMBEDDINGS),
	OPENAI("/v1/rerank", RANKS),
	OPENAI("/rerank", RANKS),
	OPENAI("/v1/reranking", RANKS),
	OPENAI("/reranking", RANKS),
	OLLAMA("POST", "/api/embed", EMBEDDINGS),
	OLLAMA("POST", "/api/embeddings", EMBEDDINGS),
	OLLAMA("POST", "/api/pull", MODELS),
	OLLAMA("POST", "/api/push", MODELS),
	OLLAMA("POST", "/api/create", MODELS),
	OLLAMA("POST", "/api/copy", MODELS),
	OLLAMA("DELETE", "/api/delete", MODELS),
	OLLAMA("GET", "/api/blobs/*", MODELS),
	OLLAMA("POST", "/api/blobs/*", MODELS),
};
