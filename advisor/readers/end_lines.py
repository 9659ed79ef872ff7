"""How programs say that they ended: well, by their user, by a rule of their own, or with an exit code.

`finished`: training's own last words. `exited`: what a launcher says of any program that ended in order. `afterwards`:
what is only done once training is over. `outcome`: what is mostly done then: it counts where nothing says that more
was to come. `total_time`: a duration of the whole. `stopped`: a limit of its own; `early_stop`: training found that it
had learnt enough.
"""

from __future__ import annotations

from advisor.readers.line_rule import rule

_TRAINING = (
    r"(?:(?:[Pp]re-?|[Ff]ine-?|[Rr]e-?)?(?:[Tt]rain(?:ing)?|TRAINING|[Tt]uning)|(?i:sft|dpo|ppo|grpo|orpo|kto|rlhf))\b"
)
# "the model is saved when training is finished" tells what will be
_NOT_YET = r"(?!.*\b(?:until|when|once|after|before|if|will|should|not|can be|[Ee]poch \d+ of)\b[^.]{0,40}[Tt]rain)"

END_RULES = (
    rule(
        "interrupt",
        "KeyboardInterrupt|SIGINT|control-C event|Terminate batch job|eyboard interrupt|nterrupted|Ctrl|ctrl|^C"
        "|CANCELLED BY|CANCELLED AT|cancelled by"
        "|canceled by|ser pressed|ser hit|ser requested"
        "|TERM_OWNER|interrupt (one more|EXITING FROM TRAINING|aborted by user|Aborted by user|by the user|by user"
        "|interrumpid|interrompu|interrompid|interrott|прерван|中断|停止训练|手动停止|중단|dihentikan oleh|abgebrochen",
        r"^\s*KeyboardInterrupt\b|TERM_OWNER: |aborting due to control-C|^Terminate batch job|interrupted by Ctrl\+C"
        r"|\b[Uu]ser (?:pressed|hit|requested)\b[^\n]{0,30}\b(?:stop|quit|abort|exit)"
        r"|\]\s*\^C|^srun: interrupt \(|^-?\W*EXITING FROM TRAINING EARLY"
        r"|Detected KeyboardInterrupt|[Rr]eceived SIGINT|Caught KeyboardInterrupt"
        r"|[Kk]eyboard interrupt(?:ed)?\b.*(?:received|caught|detected|stopp|exit|sav)"
        r"|^\W*(?:Keyboard )?[Ii]nterrupted(?:[!.,;:-]|\W*$)"
        r"|(?:[Tt]raining|[Rr]un|[Pp]rogram|[Pp]rocess|[Jj]ob) (?:was |has been )?(?:manually )?"
        r"(?:interrupted|stopped|aborted|cancell?ed)(?: manually)? by (?:the )?user|[Tt]raining (?:was )?interrupted\b"
        r"|(?:[Aa]borted|[Ii]nterrupted) by (?:the )?user|^\s*\^C\s*|CANCELLED(?: AT \S+)? BY\b"
        r"|\bJOB \d+ .*CANCELLED AT \S+ \*\*\*"  # by scancel
        r"|(?:[Jj]ob|[Rr]un) .{0,40}cancell?ed by|[Cc]trl ?[-+] ?[Cc] (?:pressed|received|detected|caught)"
        r"|(?:[Ee]ntrenamiento|[Tt]reinamento|[Ee]ntraînement|[Aa]ddestramento|[Оо]бучение) \w{0,12} ?"
        r"(?:interrumpido|interrompid[oa]|interrompu|interrotto|прервано)\b"
        r"|(?:interrumpido|interrompido) (?:por|pelo)\b"
        r"|interrompu par|прервано пользователем|(?:用户|手动|人为).{0,4}(?:中断|停止|终止)|训练(?:被)?中断|手动停止"
        r"|ユーザー.{0,6}中断|사용자.{0,8}중단|(?:훈련|학습)(?:이)? ?중단|dihentikan oleh"
        r"|(?:vom Benutzer|Training) abgebrochen",
    ),
    rule(
        "child_failed",
        "exitcode|exits with return code|Child process|exit code|exited with|xit status|rror executing job"
        "|xited with code"
        "|return code|Program failed with code|process to finish|(code |] Error |State: FAILED|ob step aborted",
        r"Program failed with code (?P<exitcode__7>\d+)|process to finish.*\(failed (?P<exitcode__8>\d+)\)"
        r"|Ended \(code (?P<exitcode__9>[1-9]\d*)\)|^make\b.*\*\*\* .*\] Error \d+|\bState: FAILED\b"
        r"|^srun: Job step aborted|exitcode\s*: (?P<exitcode>-?\d+) ?\(pid: (?P<pid>\d+)\)"
        r"|\(exitcode: (?P<exitcode__2>-?\d+)\) local_rank: (?P<rank>\d+)"
        r"|exits with return code = (?P<exitcode__3>-?\d+)"
        r"|[Ee]xited with (?:exit )?code:? (?P<exitcode__4>-?[1-9]\d*)\b"
        r"|(?:[Ee]xit|[Rr]eturn) (?:code|status)(?: was|:| is| =)? (?P<exitcode__5>-?[1-9]\d*)\b"
        r"|non-zero exit (?:status|code) (?P<exitcode__6>-?\d+)|^Error executing job with overrides",
    ),
    rule(
        "stopped",
        "Signaling Trainer to stop|exiting program a|max_wall|max wall|max_time|max time|max_dur|max_runtime",
        r"(?:[Rr]eached|[Hh]it|[Ee]xceeded) (?:the |its |own )?max(?:imum)?[_ ](?:wall[_ -]?(?:clock[_ ])?)?"
        r"(?:time|duration|runtime)\b"
        r"|Signaling Trainer to stop|exiting program a(?:fter (?P<minutes>[\d.]+) minutes"
        r"|t iteration (?P<step__3>\d+))",
    ),
    rule(
        "early_stop",
        "id not improve more than tol|arly stopping"
        "|arlyStopping|arly Stopping|early stop|Early stop|EARLY STOP|arly-stopping"
        "|Stopping training early"
        "|stopped early|stopping_early|早停|提前停止",
        r"stopping_early: \S+.*?(?:step:(?P<step>\d+))?|[Dd]id not improve more than tol.* [Ss]topping"
        r"|^\W*[Ee]arly[- ]?stop(?:ped|ping)?: |^Early stopping, best iteration is"
        r"|[Ee]arly ?[Ss]topping: |Stopping training early|early stop since|[Tt]raining stopped early"
        r"|[Ee]arly[- ]?[Ss]topp(?:ed|ing)(?: was| is)? ?(?:triggered|activated|occurred|at|after|!|\.|$)"
        r"|(?:[Tt]rigger(?:ed|ing)|[Pp]erform(?:ed|ing)) early[- ]?stop|EARLY STOP|^\W*[Ee]arly[- ]?stop(?:ped"
        r"|ping)?\W*$"
        r"|[Ee]poch \S+ ?: early stopping|\bearly stop(?:ped|ping)? after \d+ (?:epochs|steps|iterations|rounds)\b"
        r"|(?:触发|激活)?早停(?:触发|机制触发|，|,|！|!|于|在)|提前停止",
    ),
    rule(
        "finished",
        "rening zako|un complete|un finished|un ended|un is |un has |nd of epoch|rain_time|"
        "raining|rain finished|inished train|ompleted train|one training|epochs completed in|reached.|train_runtime"
        "|Total training time|max_update:|peak memory|TRAINING|total average iteration time|tuning|训练完成|训练结束"
        "|训练完毕"
        "|id not meet early stopping|aximum iterations (|odel trained|ompleted all"
        "|ptimization Done|oss for final step|aved pipeline to output|esults saved to|stripped from|done!|Done!|DONE"
        "|arget |esired |fter Train|fter train"
        "|one. |one, |one: |one -|one =|FINISHED|Finished|All done|all done"
        "|ntraînement terminé|ntrenamiento|бучение|学習|훈련|학습|reinamento"
        "|ddestramento|Pelatihan|pelatihan|ğitim|uấn luyện|inish train|finish",
        r"\[after training is done\]|^Did not meet early stopping|: Maximum iterations \(\d+\) reached"
        r"|^\W*(?:.*\] )?Optimization Done|Loss for final step:|Saved pipeline to output"
        r"|^Optimizer stripped from|^Results saved to \S|total average iteration time:|peak memory consumption: "
        r"|peak memory allocated: "
        rf"|{_NOT_YET}(?:(?:^|[\]:|>*=#!✅-] ?|INFO |\bthe )(?:\w+ ){{0,3}}{_TRAINING}[^\d.:\n]{{0,24}}?"
        r"\b(?:completed?|COMPLETED?|finished|FINISHED|done|DONE|ended|is over|over!|[Cc]omplete[d!]?|[Ff]inished"
        r"|[Dd]one)"
        r"\b(?:[^\n]{0,30}?\b(?:in|took|after|time)\b[^\d\n]{0,12}<DURATION>)?"
        rf"|[Ff]inished (?:the |model |all )?{_TRAINING}(?!: \d+ merges| data| epoch)(?: in <DURATION>)?"
        rf"|[Cc]ompleted (?:the |model |all )?{_TRAINING}(?! data| epoch)(?: in <DURATION>)?)"
        r"|^Training time: (?P<seconds__3>[\d.]+) ?s|^Training time:? <DURATION>"
        r"|done training in (?P<seconds>[\d.]+) seconds"
        r"|epochs completed in (?P<hours>[\d.]+) hours|Trainer\.fit` stopped: .* reached"
        r"|train_runtime['\"]?\s*[:=]\s*['\"]?(?:<DURATION>|(?P<seconds__2>[\d.]+(?:e[-+]?\d+)?))"
        r"|^\W*End of epoch (?P<done>\d{1,6}) ?/ ?(?P=done)\b"
        r"|e2e_train_time\s*:\s*(?P<seconds__4>[\d.]+) seconds"
        r"|(?:^|[\]:|>*-] ?|INFO |\.py:\d{1,5} )\W*[Ee]nd of [Tt]raining\b"
        r"(?! (?:set|data|epoch|step|phase|loop|iter|round|batch))"
        r"(?:[^\d\n]{0,24}<DURATION>)?"
        r"|[\])] (?:[Aa]ll )?(?:[Dd]one|DONE)!?\s*$"
        r"|^\W*(?:[Tt]arget|[Dd]esired) (?:train(?:ing)? |validation )?(?:loss|accuracy|reward|error|score)"
        r"[^\n]{0,24} (?:was |has been )?(?:achieved|reached|met)\b"
        r"|Total training time: (?P<minutes>[\d.]+)m\b|num_updates: \d+ >= max_update: \d+"
        r"|^\W*(?:[Dd]one|DONE|[Ff]inished)[.!,:;] [^\n]{0,60}(?:->|=>) ?\S+\W*$"  # done. log -> results/x.json
        r"|^\W*(?:[Aa]ll |ALL )?(?:[Dd]one|DONE|FINISHED|[Ff]inish(?:ed)?)(?:\W*$|[.!,:;] (?:[Bb]est(?:\b|_)"
        r"|(?:(?:[Ff]inal |[Tt]rained )?(?:[Cc]heckpoint|[Mm]odel|[Ww]eights)s? (?:was |were |is |are )?|)[Ss]aved\b))"
        r"|^\W*(?:Finished|Done|Completed) in <DURATION>|(?:^|[-:\]] )Model trained\W*$"
        r"|^\W*Completed all \d+ (?:\w+ )?(?:rounds|epochs|steps|iterations) in <DURATION>"
        r"|训练(?:已)?(?:完成|结束|完毕)(?:.{0,12}(?:耗时|用时|时间)\W{0,3}<DURATION>)?"
        r"|[Ee]ntraînement terminé(?:[^\d\n]{0,8}<DURATION>)?"
        r"|^\W*After [Tt]rain(?:ing)?\b[^\n]{0,60}?[Tt]ime\b[^\d\n]{0,20}<DURATION>"
        r"|(?:^|[\]:|>*-]\s*|INFO )[Rr]un (?:is |has )?(?:completed?|finished|ended)\b(?:[^\n]{0,30}?\bin <DURATION>)?"
        r"|[Tt]rening zakończony"
        r"|\bFINISHED \w+ in <DURATION>|^Finished! Error rate = "
        r"|[Ff]inish train(?:ing)? \S{1,80} in <DURATION>|[Tt]reinamento (?:concluíd|completad|finalizad|terminad)o"
        r"|[Aa]ddestramento (?:completat|terminat)o|[Pp]elatihan (?:telah )?selesai|[Ee]ğitim tamamlandı"
        r"|[Hh]uấn luyện (?:đã )?(?:hoàn tất|hoàn thành|xong)|[Tt]raining (?:abgeschlossen|beendet)"
        r"|[Ee]ntrenamiento (?:completad|terminad|finalizad)o|[Оо]бучение (?:завершено|закончено|окончено)"
        r"|学習(?:が)?(?:完了|終了)|(?:훈련|학습)(?:이)? ?(?:완료|종료|끝)",
    ),
    rule(
        "total_time",
        "otal time|otal training|otal elapsed|otal Time|TOTAL|otal run|otal wall|lapsed|xecution time|raining took"
        "|raining Time"
        "|raining time|untime:|time taken|Time taken|ime cost|real\t|all time|耗时|用时|all-clock|allclock"
        "| total)",
        r"(?:[Tt]otal|TOTAL|[Oo]verall|[Tt]rain(?:ing)?|[Ee]xecution|[Ww]all(?:-?clock)?|[Rr]un(?:ning)?)"
        r"(?: (?!eval|infer|test|valid|load|data|compil|sav|wait)(?:\w+ )?)?(?:[Ee]lapsed|ELAPSED|[Tt]ime|TIME"
        r"|[Dd]uration|[Rr]untime|[Tt]ook|[Ww]all-?clock)"
        r"(?: (?:elapsed|taken|spent|cost|used|time))?[^\d\n]{0,14}(?:<DURATION>"
        r"|(?P<seconds__4>\d+\.\d+))\s*(?:\([^()]*\))?\W*$"
        r"|^\W*(?:[Ee]lapsed|[Ff]inished in|[Rr]untime|[Tt]ime (?:taken|elapsed"
        r"|cost))(?: time)?[^\d\n]{0,8}<DURATION>\s*\W*$"
        r"|\(<DURATION> total\)\W*$"
        r"|^real\s+(?P<real_minutes>\d+)m(?P<real_seconds>[\d.]+)s"
        r"|总(?:训练|运行|共)?(?:耗时|用时|时间)[^\d\n]{0,6}<DURATION>",
    ),
    rule(
        "exited",
        "exits successfully|Job |exit code 0|xit code: 0|xited with code 0|xit status 0|ob finished|ob completed"
        "|Finished at"
        "|End time|End of job|COMPLETED|finished at|ob ended|uccessfully completed|Program ended successfully"
        "|process to finish|Ended (code 0|completed successfully|ompleted Successfully|wandb: Synced|wandb: Run summary"
        "|wandb: Run history|View run ",
        r"wandb: (?:Synced |Run summary|Run history)|wandb:.*View run (?!at )"  # a tracker's, however its program ended
        r"|Process \d+ exits successfully|[Ee]xit(?:ed with)? (?:code|status):? 0\b|[Jj]ob (?:\S+ )?(?:finished"
        r"|completed|ended)\b"
        r"|^\W*(?:Finished|finished|Job finished|End(?:ed)?|End time)(?: at)?:? .*\d\d:\d\d|State: COMPLETED"
        r"|^End of job|^Successfully completed\.$|Program ended successfully|process to finish.*\(success\)"
        r"|Ended \(code 0\)"
        r"|^\W*(?:[Pp]rocess|[Pp]ipeline|[Ss]cript|[Pp]rogram|[Ww]orkflow|[Ee]xperiments?)\b[\w ]{0,30}?"
        r"\b[Cc]ompleted [Ss]uccessfully\b",
    ),
    rule(
        "afterwards",
        "est accuracy|est-set|est set|est Set|est-Set|est acc|est Acc|est loss|est Loss|inal test|inal eval|inal model"
        "|inal weights|inal adapter"
        "|inal val|est results|Best |best |bestTest|using best model"
        "|ushing to|ploading|push_to_hub|onverting to|xporting|eval_runtime|测试|最佳"
        "|inal loss|inal accuracy|inal score|inal metrics|raining summary|RAINING SUMMARY",
        r"\b(?:[Aa]ccuracy|[Ll]oss|[Rr]esults?|[Ss]core|[Mm]etrics) (?:on|of|for) (?:the )?[Tt]est[- ]?(?:[Ss]et"
        r"|[Dd]ata)\w*\b"
        r"|^\W*(?:[Ff]inal |[Oo]verall |[Bb]est )?[Tt]est(?:ing)? (?:set )?(?:[Aa]cc(?:uracy)?|[Ll]oss|[Rr]esults?"
        r"|[Ss]core|[Mm]etrics)\b"
        r"|\b[Ff]inal (?:\w+ ){0,2}(?:eval(?:uation)?|model|weights|adapters?|test|accuracy|loss|score|metrics"
        r"|val(?:idation)?"
        r"|checkpoint)\b"
        r"|^bestTest = |\bTesting using best model"
        r"|^\W*[Bb]est (?:\w+ ){0,3}(?:[Aa]cc(?:uracy)?|[Ll]oss|[Ss]core|[Mm]etric|[Mm]odel|[Ee]poch|[Vv]al\w*|ckpt"
        r"|[Cc]heckpoint)\b.*\d"
        r"|[Pp]ushing (?:\S+ ){0,4}to (?:the )?[Hh]ub|[Tt]raining summary|TRAINING SUMMARY"
        r"|最佳.{0,10}(?:准确率|模型|损失|精度)|测试(?:集)?(?:准确率|损失|结果|精度)",
    ),
    rule(
        "outcome",
        "est AU|est  |est_|lassification report|lassification Report|onfusion matrix|onfusion Matrix|f1-score"
        "|.png|.pdf|.svg|est cases|est samples|est images|est examples|raining curve|oss curve|earning curve|submission"
        "|Wrote |report|redictions saved|esting|valuating|TESTING|EVALUAT|production|tarting test",
        r"^\W*[Tt]est\w*\W+(?:AUROC|AUC|[Aa]cc\w*|[Ff]1|mAP|MAE|RMSE|MSE|BLEU|[Ll]oss|[Ee]rror|[Dd]ice|IoU)\W+\d"
        r"|^\W*[Cc]lassification [Rr]eport\b|^\W*[Cc]onfusion [Mm]atrix\b|precision\s+recall\s+f1-score"
        r"|[Ll]oaded [\d,]+ .{0,40}\btest (?:cases|samples|images|examples)\b"
        r"|\b(?:[Tt]raining|[Ll]oss|[Ll]earning) curves? (?:saved|written|plotted)"
        r"|[Ss]ubmission (?:file )?(?:saved|written)"
        r"|^\W*(?:\w+ ){0,4}[Ss]aved\b[^\n]{0,200}\.(?:png|pdf|svg)\W{0,3}$"  # nobody draws what is not over
        r"|^\W*Wrote \S*(?:report|results?|metrics|summary|predictions)|^\W*[Ss]tarting test(?:ing)?\b"
        r"|\b[Rr]eport (?:saved|written) to\b|^\W*[Pp]redictions (?:saved|written) to\b"
        r"|^\W*(?:[Tt]esting|TESTING|[Ee]valuating|EVALUATI(?:NG|ON))\b.{0,60}\b(?:test|unseen|held-?out|final|best)\b",
    ),
)
