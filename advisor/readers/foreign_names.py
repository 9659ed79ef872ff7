"""Names of quantities in other languages than English, as far as loops print them: 训练损失 → train loss."""

from __future__ import annotations

import re
from functools import lru_cache

# parts of words, longest first where one holds another; scripts without blanks between words
_PARTS = (
    *(("学习率", "learning rate"), ("梯度范数", "grad norm"), ("吞吐量", "throughput"), ("准确率", "accuracy")),
    *(("训练", "train "), ("验证", "val "), ("测试", "test "), ("平均", "avg "), ("总损失", "total loss")),
    *(
        ("损失", "loss"),
        ("迭代", "iteration"),
        ("轮次", "epoch"),
        ("轮数", "epoch"),
        ("步数", "step"),
        ("步骤", "step"),
    ),
    *(("最佳", "best "), ("最终", "final "), ("轮", "epoch"), ("步", "step"), ("耗时", "time"), ("用时", "time")),
    *(("时间", "time"), ("時間", "time"), ("시간", "time"), ("正解率", "accuracy"), ("정확도", "accuracy")),
    *(("学習率", "learning rate"), ("損失", "loss"), ("訓練", "train "), ("検証", "val "), ("エポック", "epoch")),
    *(("ステップ", "step"), ("학습률", "learning rate"), ("손실", "loss"), ("검증", "val "), ("훈련", "train ")),
    *(("에포크", "epoch"), ("에폭", "epoch"), ("스텝", "step"), ("학습", "train ")),
)
_WORDS = {
    **dict.fromkeys(("perte", "pertes", "pérdida", "perdida", "perda", "perdita", "pierdere", "verlust"), "loss"),
    **dict.fromkeys(
        (
            "потери",
            "лосс",
            "ошибка",
            "kayıp",
            "kaybı",
            "strata",
            "straty",
            "verlies",
            "ztráta",
            "veszteség",
            "förlust",
            "tappio",
        ),
        "loss",
    ),
    **dict.fromkeys(
        ("époque", "époques", "época", "epoche", "epoca", "epocă", "эпоха", "epoka", "epok", "tijdperk"), "epoch"
    ),
    **dict.fromkeys(
        ("étape", "étapes", "pas", "paso", "pasos", "passo", "schritt", "шаг", "adım", "krok", "stap"), "step"
    ),
    **dict.fromkeys(("steg", "lépés", "askel", "bước", "langkah"), "step"),
    **dict.fromkeys(
        ("итерация", "iteración", "iteração", "itération", "iterazione", "iterație", "iteracja"), "iteration"
    ),
    **dict.fromkeys(("entraînement", "entrenamiento", "treino", "addestramento", "antrenare", "trening"), "train"),
    **dict.fromkeys(("tiempo", "temps", "tempo", "durée", "zeit", "dauer", "время", "süre", "czas"), "time"),
    **dict.fromkeys(("genauigkeit", "точность", "acurácia", "exactitud", "exactitude"), "accuracy"),
    **dict.fromkeys(("обучение", "обучения", "eğitim"), "train"),
    **dict.fromkeys(("validación", "validação", "validazione", "validare", "validierung", "walidacja"), "val"),
    **dict.fromkeys(("walidacyjna", "walidacyjnej", "validazione"), "val"),
    **dict.fromkeys(("валидация", "валидации", "doğrulama", "validatie"), "val"),
}
ASCII_WORDS = tuple(sorted(word for word in _WORDS if word.isascii()))
_WORD = re.compile(r"[^\W\d_]+")


@lru_cache(maxsize=4096)
def english(name: str) -> str:
    """A name with the words that are known put into English; others stay."""
    if not name.isascii():
        for part, word in _PARTS:
            name = name.replace(part, word)
    return _WORD.sub(lambda match: _WORDS.get(match[0].lower(), match[0]), name)
