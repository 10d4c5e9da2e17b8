/**
 * Models that answer without blocking the page: in a worker, or in the page where a browser refuses workers.
 *
 * The worker's program is the text of `makeT5`, in a Blob: pages that are opened from disk cannot load a worker from a
 * file. Without workers, one model at a time is computed between other tasks of the page; a step of a slider then takes
 * about 60 ms for each.
 */
"use strict";

const answering = (() => {
  /** The program of the worker: the first message brings the models, each other one a question. */
  function serve(t5, reply) {
    let models = [];
    return ({ files, question }) => {
      if (files) models = files.map(t5.load);
      else reply({ question, answers: models.map((model) => t5.distribution(model, question)) });
    };
  }

  function startWorker(files, onAnswer, onFailure) {
    const program = `"use strict"; const receive = (${serve})((${makeT5})(), (answer) => postMessage(answer));
      onmessage = ({ data }) => receive(data);`;
    const url = URL.createObjectURL(new Blob([program], { type: "text/javascript" }));
    const worker = new Worker(url);
    worker.onmessage = ({ data }) => onAnswer(data);
    worker.onerror = (event) => {
      event.preventDefault();
      worker.terminate();
      onFailure();
    };
    worker.postMessage({ files });
    return (question) => worker.postMessage({ question });
  }

  /** Compute in the page, one model per task. */
  function startHere(files, onAnswer) {
    const models = [];
    return (question) => {
      const answers = [];
      const step = () => {
        const i = answers.length;
        models[i] ??= t5.load(files[i]);
        answers.push(t5.distribution(models[i], question));
        if (answers.length < files.length) setTimeout(step);
        else onAnswer({ question, answers });
      };
      setTimeout(step);
    };
  }

  /**
   * Start models.
   *
   * @param {Object[]} files - what `t5.load` takes.
   * @param {function({question: string, answers: Float64Array[]})} onAnswer - gets the distributions of each answer.
   * @returns {{ask: function(string), where: function(): string}} `ask` replaces a question that still waits, so that
   *   a drag asks as often as the models can answer; `where` is "worker" or "page".
   */
  function start(files, onAnswer) {
    let where = "worker";
    let waiting = null;
    let asked = null;
    let send;

    function next() {
      asked = waiting;
      waiting = null;
      if (asked !== null) send(asked);
    }

    function receive(answer) {
      next();
      onAnswer(answer);
    }

    function moveHere() {
      where = "page";
      send = startHere(files, receive);
      waiting = waiting ?? asked;
      if (asked !== null) next();
    }

    try {
      send = startWorker(files, receive, moveHere);
    } catch {
      moveHere(); // refused
    }
    return {
      ask: (question) => {
        waiting = question;
        if (asked === null) next();
      },
      where: () => where,
    };
  }

  return { start };
})();
