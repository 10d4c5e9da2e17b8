"""Writes answers.jsonl: answers of judges in public formats, as the servers' documentation returns them.

    python tests/ntloss/scores/answers.py > tests/ntloss/scores/answers.jsonl

In each answer one token is marked, `«4|2»`: it was written with the probability 0.7, and the other level has
0.3. So the right distribution is known. An answer without a mark has no score.
"""

import itertools
import json
import math
import re

TO_FIVE, TO_TEN, TO_100, TENTHS = [1, 5], [1, 10], [0, 100], [i / 10 for i in range(11)]
YES = {"yes": 1, "no": 0}
YES_OR_NO = {"Yes": 1, "No": 0}
LETTERS = {c: 20 - i for i, c in enumerate("ABCDEFGHIJKLMNOPQRST")}
PAIR = {"A": 1, "B": 0, "C": 0.5}
MOODS = {"calm": 0, "annoyed": 1, "angry": 2}

# kind, answer, levels, text before the score
ANSWERS = [
    # A key of JSON
    ("json", '{"score": «3|2», "reason": "A rating of 5 would need sources."}', TO_FIVE),
    ("json", '{"reason": "The score of 5 is out of reach.", "score": «3|2»}', TO_FIVE),
    ("json", '{"score": "«4|2»", "explanation": "Two facts are missing."}', TO_FIVE),
    ("json", '{"rating": «4|5», "rationale": "I counted 3 errors."}', TO_FIVE),
    ("json", '{\n  "score": «8|9»,\n  "reason": "It names 3 of 4 causes."\n}', TO_TEN),
    ("json", '```json\n{"score": «7|2», "reason": "It needs 10 more words."}\n```', TO_TEN),
    ("json", 'Here is my evaluation:\n{"score": «7|2», "reason": "5 points are missing"}', TO_TEN),
    ("json", '{"pass": true, "score": «1|0», "reason": "All 3 claims hold."}', [0, 1]),
    ("json", '{"score": «3|2», "score_weight": 2}', TO_FIVE),
    ("json", '{"max_score": 5, "score": «3|2», "min_score": 1}', TO_FIVE),
    ("json", '{"final_score": «4|3», "clarity": 5, "depth": 3}', TO_FIVE),
    ("json", '{"clarity_score": 5, "depth_score": 3, "overall_score": «4|2»}', TO_FIVE),
    ("json", '{"criteria": [{"name": "clarity", "score": 5}], "overall": «3|4»}', TO_FIVE),
    ("json", '{"evaluation": {"score": «4|1», "comment": "close to 5"}}', TO_FIVE),
    ("json", '{"score": {"value": «4|1», "max": 5}}', TO_FIVE),
    ("json", "{'score': «4|3», 'reason': 'not a 5'}", TO_FIVE),
    ("json", '{"confidence": 5, "rating": «2|3»}', TO_FIVE),
    ("json", '{"score": «4|2».0, "n": 1}', TO_FIVE),
    ("json", '{"score": "«4|2»/5"}', TO_FIVE),
    ("json", '{"overallRating": «4|2», "errors": 3}', TO_FIVE),
    ("json", '{"coherence" : «4|2»}', TO_FIVE),
    ("json", '{"verdict": "«yes|no»", "reason": "no errors, but yes, 2 typos"}', YES),
    ("json", '{"verdict": "«no|yes»", "score": 4}', YES),
    ("json", '[{"score": «4|2», "id": 3}]', TO_FIVE),
    ("json", '{"score": «4|2», "reason": "It says \\"score: 5\\" itself."}', TO_FIVE),
    ("json", '{"score": «4|2», "reason": "no </think> here, rating 5', TO_FIVE),
    ("json", '{"评分": «4|2», "理由": "有2处错误"}', TO_FIVE),
    # YAML
    ("yaml", "score: «3|2»\nreason: A rating of 5 needs sources.", TO_FIVE),
    ("yaml", "reason: |\n  Not a 5.\n  Score: 5 would be wrong.\nscore: «3|2»\n", TO_FIVE),
    ("yaml", "---\nclarity: 5\noverall_score: «3|2»\n", TO_FIVE),
    ("yaml", "score: «4|3»\njustification: The answer has 2 of 3 facts.", TO_FIVE),
    # Marks
    ("mark", "Feedback: It does not reach a score of 5 because 2 facts are missing. [RESULT] «3|2»", TO_FIVE),
    ("mark", "The answer is short, a 2 at most for length. [RESULT] «4|2»", TO_FIVE),
    ("mark", "It earns more than 5 points in style.\n\nRating: [[«7|2»]]", TO_TEN),
    ("mark", "Assistant A lists 3 facts, assistant B lists 2. [[«A|B»]]", PAIR),
    ("mark", "[[rating: «7|2»]] It names 3 causes.", TO_TEN),
    ("mark", "<score>«4|2»</score><reasoning>A rating of 5 is for perfect answers.</reasoning>", TO_FIVE),
    ("mark", "<feedback>A rating of 5 needs sources.</feedback>\n<score>\n«4|2»\n</score>", TO_FIVE),
    ("mark", "<reasoning>Score 5?</reasoning><highlight>2 words</highlight><score>«4|2»</score>", TO_FIVE),
    ("mark", "<rating>«4|2»</rating> <confidence>5</confidence>", TO_FIVE),
    ("mark", "<answer>«Yes|No»</answer> No errors.", YES_OR_NO),
    ("mark", "The 3 steps are right, so the final grade is \\boxed{«4|2»}.", TO_FIVE),
    ("mark", "Score: «3|2». To earn a score of 5, add sources.", TO_FIVE),
    ("mark", "Score: **«4|2»**/5\n\nWhy not 5? The rating of 5 requires sources.", TO_FIVE),
    ("mark", "**Score:** «4|2»\n**Reason:** 3 of 5 facts.", TO_FIVE),
    ("mark", "**Score**: «4|2»\n\n1. Clear\n2. Short", TO_FIVE),
    ("mark", "**Reasoning:** It has 2 errors.\n\n**Result:** «4|2»", TO_FIVE),
    ("mark", "## Score\n«4|2»\n\n## Reasons\n1. Clear", TO_FIVE),
    ("mark", "### Rating: «4|2» out of 5\nIt has 3 typos.", TO_FIVE),
    ("mark", "Strengths:\n1. clear\n2. short\n\nFinal score: «4|2»", TO_FIVE),
    ("mark", "Score (1-10): «7|2»\nConfidence: 3", TO_TEN),
    ("mark", "Rating from 1 to 10: «7|2»\n3 flaws", TO_TEN),
    ("mark", "Clarity: 3\nDepth: 2\nOverall: «4|3»", TO_FIVE),
    ("mark", "Clarity: 3\nOverall - «4|3»", TO_FIVE),
    ("mark", "Criteria: tone\nSupporting Evidence: 2 sentences\nScore: «8|2»", TO_TEN),
    ("mark", "| Score | «4|2» |\n| Errors | 3 |", TO_FIVE),
    ("mark", "Final answer: «4|2»\n", TO_FIVE),
    ("mark", "My rating is: «4|2»\nThere are 3 errors.", TO_FIVE),
    ("mark", "GRADE: «A|B»\nNo C is deserved.", PAIR),
    ("mark", "Verdict: «yes|no»\nThere are no errors.", YES),
    ("mark", "Score = «4|2», errors = 3", TO_FIVE),
    ("mark", "评分：«4|2»\n理由：有3处错误", TO_FIVE),
    ("mark", "得分是«4|2»，因为有3处错误", TO_FIVE),
    ("mark", "スコア：«8|2»点（10点満点）", TO_TEN),
    ("mark", "Bewertung: «4|2» von 5\nEs gibt 3 Fehler.", TO_FIVE),
    ("mark", "Gesamtbewertung: «4|2»\n3 Fehler", TO_FIVE),
    ("mark", "Puntuación: «4|2»\n3 errores", TO_FIVE),
    # A scale beside it
    ("scale", "«7|2»/10. The answer covers 2 of 3 facts.", TO_TEN),
    ("scale", "The answer has 2 flaws. «4|3»/5", TO_FIVE),
    ("scale", "Good, with 3 typos: «4|2» out of 5.", TO_FIVE),
    ("scale", "It covers 3/4 of the facts, so «4|2»/5.", TO_FIVE),
    ("scale", "**«8|2»/10** It names 3 causes.", TO_TEN),
    ("scale", "I found 3 errors, «7|2» out of 10 points.", TO_TEN),
    # Words
    ("words", "I would rate this answer «4|2».", TO_FIVE),
    ("words", "I would rate this answer a «4|2» because it has 3 flaws.", TO_FIVE),
    ("words", "It lists 3 facts. I give it a «4|2».", TO_FIVE),
    ("words", "The answer earns a «3|2». It does not reach a score of 5.", TO_FIVE),
    ("words", "This is not a 5, so I rate it «3|2» for its 2 errors.", TO_FIVE),
    ("words", "With 2 errors it deserves a rating of «3|4».", TO_FIVE),
    ("words", "It is clear. A score of «4|2» is right. A score of 5 would need sources.", TO_FIVE),
    ("words", "On a scale from 1 to 5, I give this «4|2».", TO_FIVE),
    ("words", "I rate this «4|2» on a 5-point scale, with 3 flaws.", TO_FIVE),
    ("words", "After 2 readings, the verdict is «yes|no».", YES),
    ("words", "我给«4|2»分，满分5分", TO_FIVE),
    # Nearly nothing but a level
    ("alone", "«4|2»", TO_FIVE),
    ("alone", "**«4|2»**", TO_FIVE),
    ("alone", " «4|2»", TO_FIVE),
    ("alone", "«4|2».", TO_FIVE),
    ("alone", "«4|2»\n\nThe answer has 3 flaws.", TO_FIVE),
    ("alone", "The answer has 3 flaws.\n\n«4|2»", TO_FIVE),
    ("alone", "«4|2» stars", TO_FIVE),
    ("alone", "It's a «4|2».", TO_FIVE),
    ("alone", "«Yes|No», the answer is right. No fact is missing.", YES_OR_NO),
    ("alone", "«No|Yes». It has 2 errors.", YES_OR_NO),
    ("alone", "«B|A»", PAIR),
    ("alone", "The customer is «angry|calm».", MOODS),
    ("alone", "«4|2» - clear, with 3 flaws", TO_FIVE),
    ("alone", "«85|8»", TO_100),
    ("alone", "«1|2»", TO_TEN),
    ("alone", "«0|1»", TENTHS),
    ("alone", "«10|1»", TO_TEN),
    # Thoughts
    ("thoughts", "<think>Score: 3? Or 5?</think>«4|2»", TO_FIVE),
    ("thoughts", 'Rating 5 is too much.</think>{"score": «4|2»}', TO_FIVE),
    ("thoughts", "analysisThe answer deserves score 2 or 3.assistantfinal«4|5»", TO_FIVE),
    ("thoughts", 'analysisScore: 2, or 3.assistantfinal{"score": «4|5»}', TO_FIVE),
    (
        "thoughts",
        "<|channel|>analysis<|message|>Score: 3?<|end|><|start|>assistant<|channel|>final<|message|>«4|2»",
        TO_FIVE,
    ),
    ("thoughts", "[THINK]A rating of 3?[/THINK]Score: «4|2»", TO_FIVE),
    ("thoughts", "<thinking>5/5?</thinking>\n<score>«4|2»</score>", TO_FIVE),
    # No score
    ("none", "Score: 6\nPages: 3", TO_FIVE),
    ("none", "Score: 4.5\nErrors: 2", TO_FIVE),
    ("none", "Score: N/A (see section 3)", TO_FIVE),
    ("none", '{"score": null, "reason": "criterion 3 cannot be judged"}', TO_FIVE),
    ("none", '{"score": "N/A", "errors": 3}', TO_FIVE),
    ("none", '{"score": 11, "errors": 3}', TO_TEN),
    ("none", '{"clarity": 4, "depth": 3}', TO_FIVE),
    ("none", "I cannot rate this answer. See section 3.", TO_FIVE),
    ("none", "I'm sorry, but I can't help with the 2 texts.", TO_FIVE),
    ("none", "1. The answer is correct.\n2. It is short.", TO_FIVE),
    ("none", "7/10. The answer covers 2 of 3 facts.", TO_FIVE),
    ("none", "The answer has 3 errors in 2 sentences.", TO_FIVE),
    ("none", "Rating: 3 or 4", TO_FIVE),
    ("none", "<score>unknown</score> 3 pages", TO_FIVE),
    ("none", "[RESULT] 0 because of 3 errors", TO_FIVE),
    ("none", "<think>Score: 3, or 4", TO_FIVE),
    ("none", "analysisThe answer deserves 3", TO_FIVE),
    ("none", "No score can be given: 3 pages are missing.", TO_FIVE),
]
AFTER = [
    ('{"clarity": 5, "coherence" : «4|2», "depth": 3}', TO_FIVE, '"coherence":'),
    ("<S0>Two of 5 facts.</S0>\n<S1>Clear.</S1>\n<S2>«4|2»</S2>", TO_FIVE, "<S2>"),
    ("<score_A>«D|A»</score_A><score_B>F</score_B>", LETTERS, "<score_A>"),
    ("<score_A> «D|A» </score_A>", LETTERS, "<score_A>"),
    ("8 «7|2»", TO_TEN, "8 "),
    ("Accuracy: 5\nTone: «3|2»", TO_FIVE, "Tone:"),
]


def log(share):
    return math.log(share)


def openai(tokens, finish, **others):
    entries = [
        {
            "token": t,
            "logprob": log(top[t]),
            "bytes": [*t.encode()],
            "top_logprobs": listed(top, "token", "logprob"),
        }
        for t, top in tokens
    ]
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text_of(tokens)},
        "finish_reason": finish,
    }
    return {"object": "chat.completion", "choices": [choice | {"logprobs": {"content": entries}}]} | others


def completions(tokens, finish):
    columns = {
        "tokens": [t for t, _ in tokens],
        "token_logprobs": [log(top[t]) for t, top in tokens],
        "top_logprobs": [{t: log(p) for t, p in top.items()} for _, top in tokens],
        "text_offset": [0] * len(tokens),
    }
    choice = {"index": 0, "text": text_of(tokens), "finish_reason": finish, "logprobs": columns}
    return {"object": "text_completion", "choices": [choice]}


def responses(tokens, finish):
    entries = openai(tokens, finish)["choices"][0]["logprobs"]["content"]
    part = {"type": "output_text", "text": text_of(tokens), "annotations": [], "logprobs": entries}
    message = {"type": "message", "role": "assistant", "status": "completed", "content": [part]}
    status = "completed" if finish == "stop" else "incomplete"
    output = [{"type": "reasoning", "summary": [], "content": None}, message]
    return {"object": "response", "status": status, "error": None, "output": output}


def langchain(tokens, finish):
    choice = openai(tokens, finish)["choices"][0]
    metadata = {"finish_reason": finish, "model_name": "m", "logprobs": choice["logprobs"]}
    return {"type": "ai", "content": text_of(tokens), "response_metadata": metadata}


def batch(tokens, finish):
    return {"custom_id": "1", "response": {"status_code": 200, "body": openai(tokens, finish)}, "error": None}


def ollama_chat(tokens, finish):
    entries = openai(tokens, finish)["choices"][0]["logprobs"]["content"]
    message = {"role": "assistant", "content": text_of(tokens)}
    return {"model": "m", "message": message, "done": True, "done_reason": finish, "logprobs": entries}


def ollama_generate(tokens, finish):
    chat = ollama_chat(tokens, finish)
    return {**{k: v for k, v in chat.items() if k != "message"}, "response": text_of(tokens)}


def llama_cpp(tokens, finish):
    entries = [
        {
            "id": i,
            "token": t,
            "bytes": [],
            "logprob": log(top[t]),
            "top_logprobs": listed(top, "token", "logprob", id=1),
        }
        for i, (t, top) in enumerate(tokens)
    ]
    stop = "eos" if finish == "stop" else "limit"
    return {
        "index": 0,
        "content": text_of(tokens),
        "stop": True,
        "stop_type": stop,
        "completion_probabilities": entries,
    }


def llama_cpp_sampled(tokens, finish):
    entries = [
        {
            "id": 1,
            "token": t,
            "bytes": [],
            "prob": top[t],
            "top_probs": [{"id": 1, "token": k, "prob": p} for k, p in top.items()],
        }
        for t, top in tokens
    ]
    return llama_cpp(tokens, finish) | {"completion_probabilities": entries}


def gemini(tokens, finish):
    tops = [{"candidates": listed(top, "token", "logProbability", tokenId=1)} for _, top in tokens]
    chosen = [{"token": t, "tokenId": 1, "logProbability": log(top[t])} for t, top in tokens]
    candidate = {"content": {"parts": [{"text": text_of(tokens)}], "role": "model"}, "avgLogprobs": -0.1}
    candidate["finishReason"] = "STOP" if finish == "stop" else "MAX_TOKENS"
    candidate["logprobsResult"] = {"topCandidates": tops, "chosenCandidates": chosen}
    return {"candidates": [candidate], "modelVersion": "m"}


def tgi(tokens, finish):
    chosen = [{"id": 1, "text": t, "logprob": log(top[t]), "special": False} for t, top in tokens]
    tops = [listed(top, "text", "logprob", id=1, special=False) for _, top in tokens]
    if finish == "stop":
        end = {"id": 2, "text": "</s>", "logprob": 0.0, "special": True}
        chosen, tops = [*chosen, end], [*tops, [end]]
    reason = "eos_token" if finish == "stop" else "length"
    details = {"finish_reason": reason, "generated_tokens": len(chosen), "prefill": [], "tokens": chosen}
    return {"generated_text": text_of(tokens), "details": details | {"top_tokens": tops}}


def sglang(tokens, finish):
    info = {
        "finish_reason": {"type": finish, "matched": 2},
        "output_token_logprobs": [[log(top[t]), 1, t] for t, top in tokens],
        "output_top_logprobs": [[[log(p), 1, t] for t, p in top.items()] for _, top in tokens],
    }
    return {"text": text_of(tokens), "meta_info": info}


def vllm(tokens, finish):
    tops, ids = [], []
    for t, top in tokens:
        named = {
            str(i): {"logprob": log(p), "rank": i, "decoded_token": k} for i, (k, p) in enumerate(top.items())
        }
        tops.append(named)
        ids.append([*top].index(t))
    output = {
        "index": 0,
        "text": text_of(tokens),
        "token_ids": ids,
        "finish_reason": finish,
        "logprobs": tops,
    }
    return {"request_id": "1", "finished": True, "outputs": [output]}


SERVERS = [
    *(openai, completions, responses, langchain, batch, ollama_chat, ollama_generate, llama_cpp),
    *(llama_cpp_sampled, gemini, tgi, sglang, vllm),
]


def listed(top, token, log_prob, **others):
    return [{token: t, log_prob: log(p), **others} for t, p in top.items()]


def text_of(tokens):
    return "".join(t for t, _ in tokens)


def tokens_of(answer):
    """Split an answer into tokens with the likeliest ones at each place; and the right distribution."""
    mark = re.search("«(.*?)\\|(.*?)»", answer)
    text = re.sub("«(.*?)\\|(.*?)»", r"\1", answer)
    tokens, right, place = [], {}, 0
    for token in re.findall(r"<\|\w+\|>| ?[A-Za-z]+| ?[0-9]+|\s+|.", text):
        top = {token: 1.0}
        lead = token[: len(token) - len(token.lstrip())]
        if mark and place + len(lead) == mark.start():
            top = {token: 0.7, lead + mark[2]: 0.3}
            right = {mark[1]: 0.7, mark[2]: 0.3}
        tokens.append((token, top))
        place += len(token)
    assert bool(right) == bool(mark), answer
    return tokens, right


def line(kind, server, answer, levels, finish="stop", after=None):
    tokens, right = tokens_of(answer)
    return {
        "kind": kind,
        "server": server.__name__,
        "levels": levels,
        "after": after,
        "right": right,
        "none": 0.0 if right else 1.0,
        "response": server(tokens, finish),
    }


def lines():
    servers = itertools.cycle(SERVERS)
    for kind, answer, levels in ANSWERS:
        yield line(kind, next(servers), answer, levels)
    for answer, levels, after in AFTER:
        yield line("after", next(servers), answer, levels, after=after)
    for server in SERVERS:
        yield line("server", server, '{"score": «7|10», "reason": "3 of 4"}', TO_TEN)
        yield line("server", server, "«1|3»", TO_TEN)
    for answer, levels in (('{"score": «4|2»', TO_FIVE), ("Score: «4|2»", TO_FIVE), ("«10|1»", TO_TEN)):
        yield line("length", next(servers), answer, levels, finish="length")


if __name__ == "__main__":
    for each in lines():
        print(json.dumps(each, ensure_ascii=False))
